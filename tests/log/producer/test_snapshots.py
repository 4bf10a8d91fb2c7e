from __future__ import annotations

from pathlib import Path

from kbroker.log.producer.snapshots import ProducerSnapshots


def test_which_snapshots_go(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    for offset in (30, 10, 20, 40, 50):
        snapshots.write(offset, b"%d" % offset)
    assert snapshots.offsets == [10, 20, 30, 40, 50]
    assert (snapshots.latest, snapshots.read(20)) == (50, b"20")
    snapshots.delete_outside(10, 45)
    assert snapshots.offsets == [20, 30, 40]
    snapshots.delete_strays([0, 20])
    assert snapshots.offsets == [20, 40]  # the last one holds the state at the log's end
    snapshots.delete_strays([0, 50])
    assert snapshots.offsets == []
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_goes_with_its_segment(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(tmp_path)
    snapshots.write(5, b"x")
    snapshots.write(5, b"y")
    path = snapshots.forget(5)
    assert path is not None and Path(path).name == "00000000000000000005.snapshot"
    assert snapshots.forget(5) is None
    assert snapshots.latest is None
    snapshots.delete(5)
