"""End offsets of a batch out of Spark's checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.exactly_once.source_offsets import CheckpointOffsets

pytest.importorskip("pyarrow")


def test_offsets_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{}\n{"orders":{"1":7,"0":12}}')
    offsets = pickle.loads(pickle.dumps(CheckpointOffsets(str(tmp_path))))
    assert offsets(3) == {"orders": {0: 12, 1: 7}}
    with pytest.raises(SinkError, match="has no offsets of batch 4: name the checkpointLocation"):
        offsets(4)
