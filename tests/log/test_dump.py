from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kbroker.log.dump import DumpError, dump_batches, dump_file

Unpack = Callable[[str], Path]


def text_of(lines: Iterable[str]) -> str:
    """Java and Python differ in how many replacement characters stand for broken bytes."""
    return re.sub("\N{REPLACEMENT CHARACTER}+", "?", "\n".join(lines))


def test_every_file_of_a_kafka_directory_dumps_as_kafka_dumps_it(unpack: Unpack) -> None:
    data, dumps = unpack("data-clean"), unpack("dump-clean")
    compared = 0
    for expected in sorted(dumps.rglob("*.txt")):
        path = data / expected.relative_to(dumps).with_suffix("")
        header, *lines = expected.read_bytes().decode().split("\n")[:-1]
        assert header == f"Dumping {path.relative_to(data)}"
        # a value may hold line ends: compare the whole text
        assert text_of(dump_file(path)) == text_of(lines), path
        compared += 1
    assert compared > 100


def test_a_torn_batch_ends_the_dump_with_an_error_after_the_sound_ones(unpack: Unpack) -> None:
    path = unpack("data-unclean") / "codec-none-0" / "00000000000000000000.log"
    lines = dump_file(path, records=False)
    seen = []
    with pytest.raises(DumpError, match="position 19896: a batch of 220 bytes, 213 are left"):
        for line in lines:
            seen.append(line)
    assert seen[-1].startswith("baseOffset: 118 lastOffset: 121 ")


def test_a_flipped_bit_shows_as_invalid(unpack: Unpack) -> None:
    path = unpack("data-unclean") / "codec-gzip-0" / "00000000000000000000.log"
    *sound, damaged = dump_batches(path, records=False)
    assert damaged.endswith("isvalid: false")
    assert all(line.endswith("isvalid: true") for line in sound)


def test_checkpoints_are_shown_as_they_are(unpack: Unpack) -> None:
    data = unpack("data-clean")
    assert next(dump_file(data / "segments-0" / "leader-epoch-checkpoint")) == "0"
    assert "version: 0" in list(dump_file(data / "txn-0" / "partition.metadata"))


def test_records_can_be_shown_by_a_decoder(unpack: Unpack) -> None:
    path = unpack("data-clean") / "parts-2" / "00000000000000000000.log"
    lines = list(dump_file(path, record_text=lambda record: f" len={len(record.value or b'')}"))
    assert lines[2].endswith("headerKeys: [] len=2")


@pytest.mark.parametrize("name", ["nothing.txt", "00000000000000000000.log"])
def test_a_file_of_no_known_kind_or_missing_is_one_line(tmp_path: Path, name: str) -> None:
    if name.endswith(".txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DumpError):
        list(dump_file(tmp_path / name))
