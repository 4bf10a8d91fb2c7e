"""Options of `dedupe`."""

from __future__ import annotations

import pytest

from spark_jobs.dedupe.ids import parse_by
from spark_jobs.dedupe.options import dedupe_options

VALUES = {"topic": "orders", "toTopic": "once", "checkpointLocation": "cp"}


def test_values() -> None:
    options = dedupe_options({**VALUES, "by": "json:$.id", "withoutId": "keep"})
    assert (options.by, options.without_id, options.stateful.job) == (
        "json:$.id",
        "keep",
        "dedupe",
    )
    assert (dedupe_options(VALUES).by, dedupe_options(VALUES).without_id) == ("key", "fail")


@pytest.mark.parametrize("text", ["", "offset", "header:", "json:id", "keys"])
def test_no_ids(text: str) -> None:
    with pytest.raises(ValueError, match="write key, value"):
        parse_by(text)
