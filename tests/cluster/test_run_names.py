"""Whose a name is: a run removes what ended runs left, and nothing else."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.cluster.run_names import is_abandoned, new_run_name, start_time_of


def test_what_a_living_process_made_is_left_alone() -> None:
    name = new_run_name()
    assert name != new_run_name()
    assert not is_abandoned(f"{name}-c1")


def test_what_an_ended_process_made_is_abandoned() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert is_abandoned(f"kbt-{ended.pid}-12345-0-c1")


def test_a_process_with_the_id_of_an_ended_one_does_not_own_its_names() -> None:
    pid = os.getpid()
    start = start_time_of(pid)
    assert start is not None
    assert is_abandoned(f"kbt-{pid}-{start - 1}-0-c1")
    assert not is_abandoned(f"kbt-{pid}-{start}-0-c1")


@pytest.mark.parametrize("name", ["kbt", "kbt-x-1-0-c1", "other", "xkbt-1-1-0-c1", "tmpfs"])
def test_other_names_are_not_of_a_run(name: str) -> None:
    assert not is_abandoned(name)
