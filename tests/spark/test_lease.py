"""One writer for a folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from spark_jobs import lease as lease_module
from spark_jobs.errors import StartRefused
from spark_jobs.lease import (
    STALE_MS,
    Holder,
    Lease,
    check_lease,
    conflict,
    read_holder,
    refuse_second_writer,
    started_of,
    this_host,
)
from spark_jobs.storage import Folder, absolute

HELD = Holder("a", "here", 12, "boot-7", 1_000_000)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


@pytest.mark.parametrize(
    ("host", "now_ms", "started", "said"),
    [
        ("here", 9_000_000, "boot-7", "process 12 of this machine"),
        ("here", 1_000_000, None, None),
        ("here", 1_000_000, "boot-8", None),  # a later process of the same id
        ("there", 1_004_000, None, "on here wrote to it 4 s ago (if it is gone, wait 26 s)"),
        ("there", 1_000_000 + STALE_MS, None, None),
        ("there", 990_000, None, "wrote to it 0 s ago"),  # a clock that differs
    ],
)
def test_conflicts(host: str, now_ms: int, started: str | None, said: str | None) -> None:
    reason = conflict(HELD, host, now_ms, started)
    assert reason is None if said is None else reason is not None and said in reason


def test_a_second_writer_in_this_process(folder: Folder) -> None:
    lease = Lease(folder, "w.json")
    lease.acquire()
    check_lease(folder, "w.json", lease.lease_id)
    with pytest.raises(StartRefused, match=f"a second writer to .*: process {os.getpid()} of"):
        Lease(folder, "w.json").acquire()
    lease.release()
    refuse_second_writer(folder, "w.json")
    assert folder.names() == []


def test_a_process_that_is_gone_gives_way(folder: Folder) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    started = started_of(gone.pid)
    assert gone.wait() == 0 and started_of(gone.pid) is None
    holder = Holder("a", this_host(), gone.pid, started or "x", time.time_ns() // 1_000_000)
    folder.write("w.json", json.dumps(asdict(holder)).encode())
    folder.write("w.json.a", json.dumps(asdict(holder)).encode())  # it was killed while it began
    lease = Lease(folder, "w.json")
    lease.acquire()
    assert folder.names() == ["w.json"]
    lease.release()


def test_a_process_of_another_pid_namespace(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in another container with the name of this machine: its process id means another process
    here, or none, which says nothing about it.
    """
    lease = Lease(folder, "w.json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", lambda _path: "pid:[1]")
        patch.setattr(os, "getpid", lambda: 2**22 + 1)  # above pid_max
        lease.acquire()
    said = rf"process {2**22 + 1} on {socket.gethostname()} wrote to it \d+ s ago"
    with pytest.raises(StartRefused, match=said):
        Lease(folder, "w.json").acquire()
    check_lease(folder, "w.json", lease.lease_id)
    lease.release()


def test_two_that_begin_at_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has looked, before it has written."""
    first, second = Lease(folder, "s/w.json"), Lease(folder, "s/w.json")
    look = lease_module.refuse_second_writer

    def looked(*arguments: str) -> None:
        look(*arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        with pytest.raises(StartRefused, match="a second writer to"):
            second.acquire()

    monkeypatch.setattr(lease_module, "refuse_second_writer", looked)
    first.acquire()
    check_lease(folder, "s/w.json", first.lease_id)
    assert folder.names("s") == ["w.json"]
    first.release()


def test_a_writer_that_was_taken_over(folder: Folder) -> None:
    lease = Lease(folder, "w.json")
    lease.acquire()
    folder.write("w.json", json.dumps(asdict(HELD)).encode())
    with pytest.raises(StartRefused, match="process 12 on here has taken over"):
        check_lease(folder, "w.json", lease.lease_id)
    lease.release()
    assert read_holder(folder, "w.json") == HELD
    folder.delete("w.json")
    with pytest.raises(StartRefused, match="another process has taken over"):
        check_lease(folder, "w.json", lease.lease_id)


def test_a_file_that_cannot_be_read_holds_nothing(folder: Folder) -> None:
    folder.write("w.json", b"?")
    assert read_holder(folder, "w.json") is None


def test_this_process_has_a_start() -> None:
    assert started_of(os.getpid()) == started_of(os.getpid()) is not None
