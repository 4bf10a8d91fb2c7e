"""Options of `mirror`."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError
from spark_jobs.mirror.options import mirror_options

VALUES = {"subscribe": "orders", "checkpointLocation": "cp"}


def test_values() -> None:
    options = mirror_options(
        {**VALUES, "toBootstrapServers": "b:2", "prefix": "a.", "copyConfigs": "false"}
    )
    assert (options.to_servers, options.prefix, options.copies_configs) == ("b:2", "a.", False)
    stream = options.stream
    assert (stream.query_name, stream.target, stream.target_servers) == (
        "mirror",
        "a.* of b:2",
        "b:2",
    )


def test_a_prefix_is_enough_within_one_cluster() -> None:
    assert mirror_options({**VALUES, "prefix": "copy."}).to_servers == "localhost:9092"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (VALUES, "give --toBootstrapServers"),
        ({"toBootstrapServers": "b:2", "subscribe": "orders"}, "give --checkpoint"),
        ({"toBootstrapServers": "b:2", "checkpointLocation": "cp"}, "give one of --subscribe"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        mirror_options(values)
