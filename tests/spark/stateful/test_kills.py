"""Whole runs of the jobs that remember, with a kill in the middle of batches: each result once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.copying.records import content, records_of
from tests.spark.kill_rounds import ROUNDS, Rounds

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3
BASE_MS = 1_700_000_040_000
"""The beginning of a minute; each record is a second later."""
MINUTE_MS = 60_000
DELAY = "10 minutes"
DELAY_MS = 10 * MINUTE_MS
"""More than the partitions of a batch are apart, so that no record is late."""
NewTopic = Callable[[int], str]


def fill(bootstrap: str, topic: str, rows: list[tuple[bytes, bytes, int]]) -> None:
    """Rows of key, value and number."""
    sent = [
        Sent(key, value, (), BASE_MS + number * 1000, number % PARTITIONS)
        for key, value, number in rows
    ]
    ConfluentAdapter(bootstrap).produce(topic, sent, codec="lz4", idempotent=True)


def identity(number: int) -> bytes:
    """The id of a record: of three in a row, one in each partition, and now and then of an earlier
    one that is remembered still.
    """
    first = number // PARTITIONS
    return b"%d" % (first - 30 if number % 10 == 9 and first >= 30 else first)


@ROUNDS
def test_dedupe(
    mortal: BrokerProcess, new_mortal_topic: NewTopic, tmp_path: Path, rounds: int
) -> None:
    bootstrap, topic = mortal.bootstrap_servers, new_mortal_topic(PARTITIONS)

    def feed(numbers: range) -> None:
        fill(bootstrap, topic, [(identity(n), b"%d" % n, n) for n in numbers])

    arguments = ["dedupe", "--bootstrap-servers", bootstrap, "--topic", topic]
    arguments += ["--to", f"{topic}-once", "--checkpoint", str(tmp_path), "--watermark", DELAY]
    count = Rounds(arguments, feed, mortal).run(rounds)
    found = records_of(bootstrap, f"{topic}-once", PARTITIONS)
    ids = sorted(bytes(record.key or b"") for records in found for record in records)
    assert ids == sorted({identity(number) for number in range(count)})
    for records, sources in zip(found, records_of(bootstrap, topic, PARTITIONS), strict=True):
        taken = set(content(records))
        assert content(records) == [each for each in content(sources) if each in taken]


@ROUNDS
def test_aggregate(
    mortal: BrokerProcess, new_mortal_topic: NewTopic, tmp_path: Path, rounds: int
) -> None:
    bootstrap, topic = mortal.bootstrap_servers, new_mortal_topic(PARTITIONS)

    def feed(numbers: range) -> None:
        rows = [(b"k%d" % (n % 5), json.dumps({"amount": n}).encode(), n) for n in numbers]
        fill(bootstrap, topic, rows)

    arguments = ["aggregate", "--bootstrap-servers", bootstrap, "--topic", topic]
    arguments += ["--to", f"{topic}-sums", "--checkpoint", str(tmp_path), "--watermark", DELAY]
    arguments += ["--window", "1 minute", "--schema", "amount long"]
    arguments += ["--aggregates", "rows=count(*), total=sum(value.amount)"]
    count = Rounds(arguments, feed, mortal).run(rounds)
    watermark = BASE_MS + (count - 1) * 1000 - DELAY_MS
    expected: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for number in range(count):
        start = BASE_MS + number * 1000 // MINUTE_MS * MINUTE_MS
        if start + MINUTE_MS <= watermark:
            totals = expected[f"k{number % 5}", start]
            totals[0] += 1
            totals[1] += number
    values = [
        json.loads(bytes(record.value or b""))
        for records in records_of(bootstrap, f"{topic}-sums", PARTITIONS)
        for record in records
    ]
    found = {(v["key"], v["window_start"]): [v["rows"], v["total"]] for v in values}
    assert len(found) == len(values)
    assert found == expected
