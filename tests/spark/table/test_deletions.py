"""For how long deletions are kept, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.storage import Folder, absolute
from spark_jobs.table.deletions import FOLDER, Deletions

LATEST = {0: 100, 1: 10}


@pytest.fixture
def output(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


def keep(
    output: Folder, number: int, until: dict[int, int], *, generation: int = 1, noted: bool = True
) -> str:
    """As `Deletions.keep` leaves them. Gives the name."""
    name = f"{number:020d}"
    output.write(f"{FOLDER}/{name}/part-0.parquet", b"")
    if noted:
        values = {"generation": generation, "until": until}
        output.write(f"{FOLDER}/{name}.json", json.dumps(values).encode())
    return name


@pytest.mark.parametrize(
    ("until", "latest", "ends", "is_kept"),
    [
        (LATEST, LATEST, {0: 99, 1: 10}, True),
        (LATEST, {0: 900, 1: 90}, {0: 100, 1: 11}, False),
        (LATEST, None, {0: 100, 1: 10}, False),
        (LATEST, {}, {0: 100, 1: 9}, True),
        ({}, {}, {0: 100, 1: 10}, True),
        ({}, None, {0: 100, 1: 10}, True),
        ({}, LATEST, {0: 99, 1: 10}, True),
        ({}, LATEST, {0: 100, 1: 10, 2: 0}, False),
        # A partition that came since has only newer records.
        (LATEST, LATEST, {0: 100, 1: 10, 2: 0}, False),
        ({**LATEST, 2: 1}, LATEST, {0: 100, 1: 10}, True),
    ],
)
def test_until_all_that_there_was_then_is_read(
    output: Folder,
    until: dict[int, int],
    latest: dict[int, int] | None,
    ends: dict[int, int],
    is_kept: bool,
) -> None:
    deletions = Deletions(output, 1)
    name = keep(output, 3, until)
    deletions.drop(4, ends, latest)
    kept = deletions.kept()
    assert [each.name for each in kept] == ([name] if is_kept else [])
    assert output.exists(f"{FOLDER}/{name}") is is_kept
    if is_kept:  # from when the brokers answer on, it has an end
        assert kept[0].until == (until or latest or {})


def test_what_no_batch_needs_goes(output: Folder) -> None:
    """Of a topic that was created again, and of a run that was killed before its note."""
    deletions = Deletions(output, 2)
    keep(output, 3, LATEST, generation=1)
    keep(output, 4, LATEST, noted=False)
    stays = keep(output, 5, LATEST, generation=2)
    later = keep(output, 7, LATEST, noted=False)
    deletions.drop(6, {0: 0, 1: 0}, LATEST)
    assert output.names(FOLDER) == [stays, f"{stays}.json", later]


def test_a_damaged_note_is_one_line(output: Folder) -> None:
    note = b'{"generation": 1, "until": {}}'
    output.write(f"{FOLDER}/{3:020d}-merged-x.json", note)
    with pytest.raises(JobError, match=r"3-merged-x\.json is damaged .*'x'"):
        Deletions(output, 1).kept()
    output.delete(f"{FOLDER}/{3:020d}-merged-x.json")
    output.write(f"{FOLDER}/{3:020d}.json", b"{}")
    with pytest.raises(JobError, match=r"3\.json is damaged .*: bring it back from a copy"):
        Deletions(output, 1).kept()
