"""Options of `aggregate`."""

from __future__ import annotations

import pytest

from spark_jobs.aggregate.measures import Group
from spark_jobs.aggregate.options import AggregateOptions, aggregate_options
from spark_jobs.errors import JobError

VALUES = {"topic": "orders", "toTopic": "totals", "checkpointLocation": "cp"}
WINDOW = {"window": "5 minutes", "delayThreshold": "1m"}


def test_values() -> None:
    options = aggregate_options({**VALUES, **WINDOW, "groupBy": "value.country"})
    assert (options.window_ms, options.groups) == (
        300_000,
        (Group("country", "value.country"),),
    )
    running = aggregate_options(VALUES)
    assert running == AggregateOptions(running.stateful)
    assert aggregate_options({**VALUES, "groupBy": "none"}).groups == ()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"window": "5m"}, "belong together"),
        ({"delayThreshold": "5m"}, "belong together"),
        ({"groupBy": "key", "aggregates": "key=count(*)"}, "is a group and a total"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        aggregate_options({**VALUES, **values})
