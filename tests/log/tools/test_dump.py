from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kbroker.cli import record_decoders
from kbroker.log.tools.dump import DumpError, RecordText, TornTailError, dump_batches, dump_file
from kbroker.protocol.batches.records import Record

Unpack = Callable[..., Path]
KINDS = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint"})
TORN = {f"{folder}/00000000000000000000.log" for folder in ("codec-none-0", "parts-0")}
FAILED = {f"{folder}/00000000000000000000.index" for folder in ("log-append-time-1", "parts-1")}
DECODERS = {
    "__consumer_offsets-0": record_decoders.offsets_text,
    "__transaction_state-0": record_decoders.transactions_text,
    "__share_group_state-0": record_decoders.share_state_text,
}


def text_of(lines: Iterable[str]) -> str:
    """Java and Python differ in how many replacement characters stand for broken bytes."""
    return re.sub("\N{REPLACEMENT CHARACTER}+", "?", "\n".join(lines))


@pytest.mark.parametrize("life", ["clean", "unclean", "recovered"])
def test_every_file_of_a_kafka_directory_dumps_as_kafka_dumps_it(unpack: Unpack, life: str) -> None:
    data, dumps = unpack(f"data-{life}", large=True), unpack(f"dump-{life}")
    left = {path for path in data.rglob("*") if path.suffix in KINDS}
    torn, failed = set(), set()
    for expected in sorted(dumps.rglob("*.txt")):
        if expected.name.endswith(".decoded.txt"):
            continue
        path = data / expected.relative_to(dumps).with_suffix("")
        left.remove(path)
        header, *lines = expected.read_bytes().decode().split("\n")[:-1]
        assert header == f"Dumping {path.relative_to(data)}"
        if lines[:1] and lines[0].startswith("DUMP FAILED"):
            failed.add(str(path.relative_to(data)))
            continue
        found = []
        try:
            found.extend(dump_file(path))
        except TornTailError:
            torn.add(str(path.relative_to(data)))
            # and Kafka's line of the bytes behind the batches was printed before it
            assert found[-1].startswith("Found ")
        # a value may hold line ends: compare the whole text
        assert text_of(found) == text_of(lines), path
    assert torn == (TORN if life == "unclean" else set())
    # Kafka's own tool trips over a preallocated index beside an empty log
    assert failed == (FAILED if life == "unclean" else set())
    for path in left:  # Kafka's tool says no more of these
        assert path.stat().st_size == 0
        assert list(dump_file(path)) == [f"{path} is empty."] * (path.suffix == ".index")


@pytest.mark.parametrize("life", ["clean", "unclean", "recovered"])
def test_internal_topics_are_decoded_as_kafka_decodes_them(unpack: Unpack, life: str) -> None:
    data, dumps = unpack(f"data-{life}"), unpack(f"dump-{life}")
    compared = 0
    for expected in sorted(dumps.rglob("*.decoded.txt")):
        path = data / str(expected.relative_to(dumps)).removesuffix(".decoded.txt")
        text = DECODERS.get(path.parent.name, record_decoders.metadata_text)
        _, *lines = expected.read_bytes().decode().split("\n")[:-1]
        assert list(dump_file(path, record_text=text)) == lines, path
        compared += 1
    assert compared == 8


@pytest.mark.parametrize(
    ("text", "record", "shown"),
    [
        (
            record_decoders.offsets_text,
            Record(7, 0, b"\x00\x63key", b"value"),
            " key: Unknown record type 99 at offset 7, skipping.",
        ),
        (
            record_decoders.offsets_text,
            Record(7, 0, b"\x00\x02\x00\x09group", b"value"),
            " key: Error at offset 7, skipping. ",
        ),
        (
            record_decoders.transactions_text,
            Record(7, 0, b"\x00\x00\x00\x01t", b"\x00\x07new"),
            " key: Error at offset 7, skipping. ",
        ),
        (
            record_decoders.share_state_text,
            Record(7, 0, None, b"v"),
            " key: Error at offset 7, skipping. ",
        ),
        (record_decoders.metadata_text, Record(7, 0, None, b"\1\x7f\0"), " payload: Error at 7, "),
        (record_decoders.metadata_text, Record(7, 0, None, b""), " payload: Error at 7, "),
    ],
)
def test_what_cannot_be_decoded_is_said_in_its_place(
    text: RecordText, record: Record, shown: str
) -> None:
    assert text(record).startswith(shown)


def test_a_torn_batch_ends_the_dump_with_an_error_after_the_sound_ones(unpack: Unpack) -> None:
    path = unpack("data-unclean") / "codec-none-0" / "00000000000000000000.log"
    lines = dump_file(path, records=False)
    seen = []
    with pytest.raises(DumpError, match="position 19896: a batch of 220 bytes, 213 are left"):
        for line in lines:
            seen.append(line)
    assert seen[-2].startswith("baseOffset: 118 lastOffset: 121 ")
    assert seen[-1] == "Found 213 invalid bytes at the end of 00000000000000000000.log"


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
