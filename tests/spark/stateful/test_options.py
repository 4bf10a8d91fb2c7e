"""Options that `dedupe` and `aggregate` share."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError
from spark_jobs.stateful.options import stateful_options

VALUES = {"topic": "orders", "toTopic": "once", "checkpointLocation": "cp"}


def test_values() -> None:
    options = stateful_options(
        {**VALUES, "delayThreshold": "10 minutes", "lateTopic": "late", "trigger": "1 s"}, "dedupe"
    )
    assert (options.delay_ms, options.targets) == (600_000, ("once", "late"))
    stream = options.stream
    assert (stream.query_name, stream.target, stream.trigger) == (
        "dedupe-orders",
        "once and late",
        "1 s",
    )
    assert stateful_options(VALUES, "dedupe").stream.target == "once"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "give --topic"),
        ({"toTopic": ""}, "give --topic"),
        ({**VALUES, "checkpointLocation": ""}, "give --checkpoint"),
        ({**VALUES, "toTopic": "orders"}, "must be different topics"),
        ({**VALUES, "lateTopic": "late"}, "--lateTopic needs --delayThreshold"),
        ({**VALUES, "lateTopic": "once", "delayThreshold": "1s"}, "must be different topics"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        stateful_options(values, "dedupe")
