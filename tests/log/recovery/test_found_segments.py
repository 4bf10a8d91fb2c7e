"""The segments of a folder, and which of them are consistent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage import names
from kbroker.log.storage.damaged import DamagedLogError
from tests.log.recovery.folders import NOW_MS, fill, open_log


@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
def test_a_missing_index_is_rebuilt_even_after_a_clean_stop(tmp_path: Path, kind: str) -> None:
    log = open_log(tmp_path)
    fill(log, 40)
    log.close()
    path = tmp_path / "topic-0" / names.offset_name(0, kind)
    content = path.read_bytes()
    path.unlink()
    log = open_log(tmp_path, clean_shutdown=True, recovery_point=80)
    assert log.log_end_offset == 80
    assert path.read_bytes() == content


def test_an_index_without_a_log_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    folder.mkdir()
    (folder / "00000000000000000007.index").write_bytes(bytes(8))
    open_log(tmp_path)
    assert not (folder / "00000000000000000007.index").exists()


def test_an_empty_segment_whose_index_is_at_full_size_is_no_damage(tmp_path: Path) -> None:
    """A possible state after a power loss right after a clean stop: the index was trimmed, but not
    synced.
    """
    log = open_log(tmp_path)
    fill(log, 5)
    log.roll(NOW_MS)
    log.close()
    index = tmp_path / "topic-0" / names.offset_name(10, names.INDEX)
    index.write_bytes(bytes(4096))
    assert open_log(tmp_path, clean_shutdown=True, recovery_point=10).log_end_offset == 10
    index.write_bytes(b"\x00\x00\x00\x01\x00\x00\x01\x00")
    with pytest.raises(DamagedLogError, match="it is empty, its index is not"):
        open_log(tmp_path, clean_shutdown=True, recovery_point=10)


def test_a_log_that_is_missing_after_a_clean_stop_is_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.close()
    (tmp_path / "topic-0" / names.offset_name(0, names.LOG)).unlink()
    with pytest.raises(DamagedLogError, match=r"00000\.log is missing, its 0+\.\w+ is there"):
        open_log(tmp_path, clean_shutdown=True)


@pytest.mark.parametrize(
    ("bases", "lost"),
    [
        pytest.param([0, 20], "from offset 7 to 19", id="up to the next segment"),
        pytest.param([0], "from offset 7 on", id="the last"),
    ],
)
def test_after_a_crash_the_records_that_are_missing_are_named(
    tmp_path: Path, bases: list[int], lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "topic-0"
    folder.mkdir()
    for base in bases:
        (folder / names.offset_name(base, names.LOG)).touch()
    (folder / names.offset_name(7, names.TIME_INDEX)).write_bytes(bytes(12))
    open_log(tmp_path).release()
    assert lost in caplog.text


@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX])
def test_a_torn_index_is_rebuilt_and_named(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path)
    fill(log, 40)
    log.close()
    path = tmp_path / "topic-0" / names.offset_name(0, kind)
    whole = path.read_bytes() if path.exists() else b""
    path.write_bytes(whole + b"\x01")
    log = open_log(tmp_path, clean_shutdown=True, recovery_point=80)
    assert f"{path}: " in caplog.text and "rebuilt" in caplog.text
    assert log.log_end_offset == 80
    log.close()
    assert (path.read_bytes() if path.exists() else b"") == whole


def test_a_closed_segment_that_lost_its_end_is_damage_after_a_clean_stop_only(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    assert len(log.segments) > 2
    log.close()
    path = tmp_path / "topic-0" / names.offset_name(0, names.LOG)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(DamagedLogError, match="its index knows of a batch at"):
        open_log(tmp_path, clean_shutdown=True, recovery_point=120)
    path.write_bytes(whole)
    assert open_log(tmp_path, clean_shutdown=True, recovery_point=120).log_end_offset == 120
