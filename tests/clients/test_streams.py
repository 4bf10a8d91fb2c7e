"""Kafka Streams 4.3.1 against a broker: a word count with a repartition topic and a state store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
    pytest.mark.skipif(streams_problem() is not None, reason=streams_problem() or ""),
]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_word_count(tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_word_count_with_the_classic_protocol(
    bootstrap: str,
    classes: str,
    new_name: Callable[[str], str],
    tmp_path: Path,
    guarantee: str,
) -> None:
    source, sink, application = new_name("lines"), new_name("counts"), new_name("app")
    create_topics(bootstrap, source, sink)
    expected = produce_lines(bootstrap, source, range(200))
    settings = {
        "application.id": application,
        "group.protocol": "classic",
        "processing.guarantee": guarantee,
    }
    results = Results(bootstrap, sink)
    with WordCount(classes, bootstrap, source, sink, tmp_path, settings) as one:
        results.read_until(expected, one, timeout_s=60)
        assert one.stop() == 0
        assert one.states()[-1] == "NOT_RUNNING"
    results.read_rest()
    results.close()
    assert results.counts == expected
