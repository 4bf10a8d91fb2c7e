"""identity.json: written, read, damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jobs.cluster import TopicFacts
from spark_jobs.errors import JobError
from spark_jobs.identity import FILE_NAME, Identity, new_identity, read_identity, write_identity
from spark_jobs.storage import Folder, absolute

TOPICS = {"t": TopicFacts("id", {0: 5, 10: 0}, {0: 12, 10: 0})}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path)))


def test_what_was_written_is_read(checkpoint: Folder) -> None:
    assert read_identity(checkpoint) is None
    assert "targets" not in json.loads(Identity("c", "archive", "/out").to_json())
    identity = Identity("c", "mirror", "/out", 2, {"t": {0: 7}}, 41, TOPICS, {"copy": "id-c"})
    write_identity(checkpoint, identity)
    assert read_identity(checkpoint) == identity
    assert identity.query_folder == "query-2"


def test_each_batch_renews_it() -> None:
    identity = new_identity("archive", "/out").at_batch(3, TOPICS)
    assert (identity.batch_id, identity.topics) == (3, TOPICS)
    newer = {"u": TopicFacts("x", {}, {})}
    assert identity.at_batch(4, newer).topics == {**TOPICS, **newer}
    assert identity.at_batch(4, {}).topics == TOPICS
    assert new_identity("archive", "/out").checkpoint_id != identity.checkpoint_id


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1}'])
def test_a_damaged_one(checkpoint: Folder, content: bytes) -> None:
    checkpoint.write(FILE_NAME, content)
    with pytest.raises(JobError, match=r"identity.json is damaged .*: bring it back from a copy"):
        read_identity(checkpoint)
