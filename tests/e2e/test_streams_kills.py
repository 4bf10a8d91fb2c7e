"""Kafka Streams with exactly_once_v2 while the broker, and now and then the application, is killed:
the word count is that of the lines, and each count of a word was written exactly once.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.clients.streams_app import (
    Results,
    WordCount,
    compile_word_count,
    create_topics,
    produce_lines,
    streams_problem,
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(streams_problem() is not None, reason=streams_problem() or ""),
]

KILLS = 20
LINES = 100
APPLICATION_KILLS = 4
"""After so many kills of the broker the application is killed too."""
SETTINGS = {
    "application.id": "words",
    "processing.guarantee": "exactly_once_v2",
    "statestore.cache.max.bytes": "0",  # every count is written, not only the last
    # Longer than a start takes: a commit after the timeout ends the application, with Kafka too.
    "producer.transaction.timeout.ms": "60000",
    "reconnect.backoff.max.ms": "200",
}
OVERRIDES = {
    "log.segment.bytes": "1048576",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES, start_timeout_s=120) as process:
        yield process


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_each_word_is_counted_once(broker: BrokerProcess, tmp_path: Path, protocol: str) -> None:
    bootstrap = broker.bootstrap_servers
    create_topics(bootstrap, "lines", "counts")
    classes = compile_word_count()
    settings = {**SETTINGS, "group.protocol": protocol}
    expected: Counter[str] = Counter()
    moment = random.Random(protocol)
    results = Results(bootstrap, "counts")

    with ExitStack() as stack:
        stack.callback(results.close)

        def start() -> WordCount:
            arguments = (classes, bootstrap, "lines", "counts", tmp_path / "app", settings)
            return stack.enter_context(WordCount(*arguments))

        application = start()
        for number in range(1, KILLS + 1):
            results.read_until(expected, application, timeout_s=120)
            lines = range(number * LINES, (number + 1) * LINES)
            expected += produce_lines(bootstrap, "lines", lines)
            time.sleep(moment.uniform(0.0, 0.6))
            broker.kill()
            if number % APPLICATION_KILLS == 0:
                application.kill()
                broker.start()
                application = start()
            else:
                broker.start()
        results.read_until(expected, application, timeout_s=120)
        assert application.stop() == 0
        results.read_rest()
    assert results.counts == expected
    written: dict[str, list[int]] = defaultdict(list)
    for word, count in results.history:
        written[word].append(count)
    assert written == {word: list(range(1, count + 1)) for word, count in expected.items()}
