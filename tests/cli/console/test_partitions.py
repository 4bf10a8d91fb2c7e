"""Partitions that a user names, and files of offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from kbroker.cli.console.partitions import ChosenPartitions, chosen_partitions, read_offsets
from kbroker.model import StartupError, TopicPartition


def test_chosen() -> None:
    assert chosen_partitions("orders", "TOPIC") == ChosenPartitions("orders", [])
    assert chosen_partitions("orders:0,2", "TOPIC") == ChosenPartitions("orders", [0, 2])


@pytest.mark.parametrize(
    ("text", "message"), [("orders:x", "partitions are numbers"), (":0", "a name is empty")]
)
def test_what_names_no_partition(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        chosen_partitions(text, "TOPIC")


def test_offsets_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("orders,0,5\n\nbilling,orders,1,7\npayments,orders,2,9\n")
    assert read_offsets(path, "billing") == {
        TopicPartition("orders", 0): 5,
        TopicPartition("orders", 1): 7,
    }
    with pytest.raises(StartupError, match=r"line 3: topic,partition,offset expected"):
        read_offsets(path)
