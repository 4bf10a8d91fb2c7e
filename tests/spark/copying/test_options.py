"""What the streaming copies share of their options."""

from __future__ import annotations

import pytest

from spark_jobs.cluster import Subscription
from spark_jobs.copying.options import STREAM_OPTIONS, StreamOptions, stream_options
from spark_jobs.errors import JobError


def options(values: dict[str, str]) -> StreamOptions:
    return stream_options(
        values,
        job="mirror",
        subscription=Subscription(("orders",)),
        target="b:2",
        target_servers="b:2",
        query_name="m",
    )


def test_values() -> None:
    found = options(
        {
            "checkpointLocation": "cp",
            "trigger": "10 seconds",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "5",
            "resumeFrom": "output",
        }
    )
    assert (found.query_name, found.trigger, found.resume_from) == ("m", "10 seconds", "output")
    assert not found.fail_on_data_loss
    assert found.source_options["maxOffsetsPerTrigger"] == "5"
    assert found.checkpoint_uri.startswith("file:///")


def test_options_that_would_split_a_partition_do_not_exist() -> None:
    assert not {"minPartitions", "maxRecordsPerPartition"} & {each.name for each in STREAM_OPTIONS}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "give --checkpoint"),
        ({"checkpointLocation": "c", "kafka.security.protocol": "SSL"}, "without TLS and SASL"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        options(values)
