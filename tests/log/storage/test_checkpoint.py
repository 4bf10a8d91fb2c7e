from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.storage import names
from kbroker.log.storage.checkpoint import (
    CheckpointError,
    CheckpointFile,
    read_clean_shutdown,
    read_offsets,
    read_topic_id,
    write_clean_shutdown,
    write_offsets,
    write_topic_id,
)
from kbroker.model import TopicPartition, uuid_from_string

TOPIC_ID = uuid_from_string("CNpoIUjqRtiScueGoWMAkg")


def test_kafkas_checkpoints_are_read_and_written_byte_for_byte(
    unpack: Callable[[str], Path], tmp_path: Path
) -> None:
    data = unpack("data-clean")
    for name in (names.RECOVERY_POINTS, names.LOG_START_OFFSETS, names.HIGH_WATERMARKS):
        offsets = read_offsets(data / name)
        write_offsets(tmp_path / name, offsets)
        assert (tmp_path / name).read_bytes() == (data / name).read_bytes()
    assert offsets[TopicPartition("odd.name_with-dash-1", 0)] == 1
    assert read_offsets(data / names.CLEANER_OFFSETS)[TopicPartition("compact", 0)] == 159
    topic_id = read_topic_id(data / "txn-0")
    assert topic_id is not None
    write_topic_id(tmp_path, topic_id)
    written = (tmp_path / names.PARTITION_METADATA).read_bytes()
    assert written == (data / "txn-0" / names.PARTITION_METADATA).read_bytes()
    epoch = read_clean_shutdown(data)
    assert epoch == 180
    write_clean_shutdown(tmp_path, epoch)
    written = (tmp_path / names.CLEAN_SHUTDOWN).read_bytes()
    assert written == (data / names.CLEAN_SHUTDOWN).read_bytes()


def test_missing_and_empty_files_are_no_entries(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "none") == {}
    (tmp_path / "empty").write_bytes(b"")
    assert read_offsets(tmp_path / "empty") == {}
    assert read_topic_id(tmp_path) is None
    assert read_clean_shutdown(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b"1\n0\n", "version '1', expected 0", id="version"),
        pytest.param(b"0\n", "number of entries", id="no count"),
        pytest.param(b"0\nmany\n", "number of entries", id="count"),
        pytest.param(b"0\n2\na 0 1\n", "2 entries announced, 1 found", id="too few"),
        pytest.param(b"0\n1\na 0 1\nb 0 1\n", "1 entries announced, 2 found", id="too many"),
        pytest.param(b"0\n1\na 0\n", "line 3: 'a 0', expected 3 fields", id="fields"),
        pytest.param(b"0\n1\na 0 x\n", "'x' is no number", id="number"),
        pytest.param(b"\xff\xfe\n", "not text", id="bytes"),
    ],
)
def test_a_corrupt_checkpoint_says_where(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        read_offsets(path)
    assert why in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["version: 1\ntopic_id: x", "version: 0\ntopic_id: x", "", "junk"])
def test_a_corrupt_partition_metadata_says_where(tmp_path: Path, text: str) -> None:
    (tmp_path / names.PARTITION_METADATA).write_text(text)
    with pytest.raises(CheckpointError, match=r"partition\.metadata"):
        read_topic_id(tmp_path)


@pytest.mark.parametrize("text", [b"", b"{}", b"junk", b"[]"])
def test_a_marker_without_an_epoch_still_says_clean(tmp_path: Path, text: bytes) -> None:
    (tmp_path / names.CLEAN_SHUTDOWN).write_bytes(text)
    assert read_clean_shutdown(tmp_path) == -1


def test_content_that_was_prepared_later_is_not_replaced_by_earlier_content(tmp_path: Path) -> None:
    """Several threads write checkpoints, and one of them may be slow."""
    key = TopicPartition("t", 0)
    file = CheckpointFile(tmp_path / names.RECOVERY_POINTS)
    first, second, third = (file.prepare({key: offset}) for offset in (1, 2, 3))
    assert first.path == file.path
    for checkpoint, found in ((second, 2), (first, 2), (third, 3), (third, 3)):
        checkpoint.write()
        assert read_offsets(file.path) == {key: found}
