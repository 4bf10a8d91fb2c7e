"""Options of `restore` and `replay`."""

from __future__ import annotations

import argparse

import pytest

from spark_jobs.commands import COMMANDS
from spark_jobs.errors import JobError
from spark_jobs.options import add_options, collect
from spark_jobs.restore.job import slice_limit
from spark_jobs.restore.options import RestoreOptions, replay_options, restore_options


def test_restore() -> None:
    options = restore_options(
        {
            "path": "archive",
            "toTopic": "copy",
            "kafka.bootstrap.servers": "a:1",
            "rate": "500",
            "since": "1690000000000",
            "offsets": "map",
            "maxBytesPerTrigger": "1k",
        }
    )
    assert (options.job, options.name, options.topic) == ("restore", "restore-copy", "")
    assert (options.bootstrap_servers, options.rate, options.speed) == ("a:1", 500, None)
    assert (options.since_ms, options.offsets) == (1_690_000_000_000, "map")
    assert options.max_bytes == 1024
    assert options.fail_on_data_loss


@pytest.mark.parametrize(("job", "source"), [("restore", "archive"), ("replay", "topic")])
def test_both_go_on_behind_lost_offsets_if_they_are_told_to(job: str, source: str) -> None:
    """As `decide` advises."""
    command = COMMANDS[job]
    parser = argparse.ArgumentParser()
    add_options(parser, command.options)
    given = [f"--{source}", "orders", "--to", "copy", "--failOnDataLoss", "false"]
    options = command.parse(collect(command.options, *parser.parse_known_args(given)))
    assert not options.fail_on_data_loss


def test_replay() -> None:
    values = {"topic": "orders", "toTopic": "copy", "startingOffsets": '{"orders":{"0":-2}}'}
    options = replay_options({**values, "toBootstrapServers": "b:2", "queryName": "q"})
    assert (options.job, options.name) == ("replay", "q")
    assert (options.from_servers, options.bootstrap_servers) == ("localhost:9092", "b:2")
    assert (options.starting, options.ending) == ({"orders": {0: -2}}, None)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"topic": "a"}, "give --topic, which is read, and --to"),
        ({"topic": "a", "toTopic": "a"}, "into itself"),
        ({"topic": "a", "toTopic": "b", "rate": "1", "speed": "2x"}, "--rate and --speed"),
        ({"topic": "a", "toTopic": "b", "endingOffsets": '{"c":{}}'}, "must name topic a"),
        (
            {"topic": "a", "toTopic": "b", "since": "1", "startingOffsets": '{"a":{}}'},
            "--since and --startingOffsets",
        ),
        (
            {"topic": "a", "toTopic": "b", "endingOffsets": '{"a":{"0":5,"1":-2}}'},
            "--endingOffsets: an offset cannot be less than -1: correct that of partition 1",
        ),
        (
            {"topic": "a", "toTopic": "b", "startingOffsets": '{"a":{"0":-3}}'},
            "--startingOffsets: an offset cannot be less than -2: correct that of partition 0",
        ),
        ({"topic": "a", "toTopic": "b", "kafka.security.protocol": "SSL"}, "without TLS and SASL"),
    ],
)
def test_mistakes(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        replay_options(values)


def test_restore_needs_both_ends() -> None:
    with pytest.raises(JobError, match="give --archive"):
        restore_options({"toTopic": "a"})


@pytest.mark.parametrize(
    ("options", "record_bytes", "limit"),
    [
        (RestoreOptions("t", max_offsets=7), 100.0, 7),
        (RestoreOptions("t", max_bytes=1_000_000), 100.0, 10_000),
        (RestoreOptions("t", max_bytes=1_000_000), 1e6, 1_000),
        (RestoreOptions("t"), None, 1_000_000),
    ],
)
def test_size_of_a_slice(options: RestoreOptions, record_bytes: float | None, limit: int) -> None:
    assert slice_limit(options, record_bytes) == limit
