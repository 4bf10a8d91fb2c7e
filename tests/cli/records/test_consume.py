"""`kbroker consume` of ranges, times, patterns and partitions; more in `cli/test_commands`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cli.records import source as record_source
from kbroker.cli.records.source import FROM_THE_BEGINNING, RecordSource, Wanted
from kbroker.client.cluster import Client
from kbroker.client.consumer import ConsumerConfig
from kbroker.testing import EmbeddedBroker

Kbroker = Callable[..., Any]


@pytest.fixture
def topic(kbroker: Kbroker, kafka_topic: str) -> str:
    """Ten records with timestamps of 0 to 9 s."""
    text = "\n".join(f"{second * 1000} {second}" for second in range(10))
    assert kbroker("produce", kafka_topic, "--format", "%T %v", text=text).code == 0
    return kafka_topic


@pytest.mark.parametrize(
    ("offset", "values"),
    [
        ("beginning..3", "012"),
        ("3..5", "34"),
        ("..2", "01"),
        ("-3..-1", "78"),
        ("+2..+4", "23"),
        ("8..end", "89"),
        ("@4000..@6000", "45"),
        ("@1970-01-01T00:00:08..end", "89"),
        ("5..5", ""),
    ],
)
def test_a_range_ends(kbroker: Kbroker, topic: str, offset: str, values: str) -> None:
    result = kbroker("consume", topic, "--offset", offset)
    assert (result.code, "".join(result.lines)) == (0, values), result.err


def test_a_range_beyond_the_end_is_waited_for(kbroker: Kbroker, topic: str) -> None:
    assert kbroker("consume", topic, "--offset", "8..12", "--timeout", "0.2").lines == ["8", "9"]
    assert kbroker("consume", topic, "--offset", "8..12", "-x").lines == ["8", "9"]
    kbroker("produce", topic, text="10\n11\n12")
    lines = kbroker("consume", topic, "--offset", "8..12").lines
    assert lines == ["8", "9", "10", "11"]


def test_partitions(kbroker: Kbroker, topic: str) -> None:
    kbroker("topics", "add-partitions", topic, "--partitions", "3")
    kbroker("produce", topic, "-p", "1", text="one")
    kbroker("produce", topic, "-p", "2", text="two")
    chosen = kbroker("consume", f"{topic}:1,2", "-e", "-x", "--format", "%p %v")
    assert sorted(chosen.lines) == ["1 one", "2 two"]
    chosen = kbroker("consume", topic, "-p", "1", "-p", "2", "-e", "-x", "--format", "%p %v")
    assert sorted(chosen.lines) == ["1 one", "2 two"]


def test_several_topics_and_a_pattern(kbroker: Kbroker, topic: str) -> None:
    kbroker("topics", "create", f"{topic}-b")
    kbroker("produce", f"{topic}-b", text="b")
    both = kbroker("consume", topic, f"{topic}-b", "--offset", "-1", "-x", "--format", "%t %v")
    expected = [f"{topic} 9", f"{topic}-b b"]
    assert sorted(both.lines) == expected
    pattern = f"{topic}(-b)?"
    both = kbroker("consume", pattern, "--regex", "--offset", "-1", "-x", "--format", "%t %v")
    assert sorted(both.lines) == expected
    group = f"pattern-{topic}"
    read = kbroker("consume", pattern, "--regex", "-g", group, "-e", "-n", "11", "--json")
    assert len({json.loads(line)["topic"] for line in read.lines}) == 2
    nothing = kbroker("consume", "no-such-.*", "--regex", "-x")
    assert (nothing.code, nothing.err) == (1, "kbroker: no topic matches\n")


def test_a_pattern_finds_topics_that_come_later(
    kbroker: Kbroker,
    kafka_broker: EmbeddedBroker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_source, "WATCH_INTERVAL_S", 0.0)
    wanted = Wanted.of([f"{topic}.*"], None, regex=True)
    config = ConsumerConfig(max_wait_ms=10)

    async def read() -> list[str]:
        values: list[str] = []
        async with Client(kafka_broker.bootstrap_servers) as client:
            source = RecordSource(client, config, wanted, FROM_THE_BEGINNING)
            await source.open(exit_at_end=False)
            while len(values) < 10:
                values += [bytes(each.value or b"").decode() for each in await source.poll()]
            kafka_broker.create_topic(f"{topic}-later")
            await asyncio.to_thread(kbroker, "produce", f"{topic}-later", text="late")
            while "late" not in values:
                values += [bytes(each.value or b"").decode() for each in await source.poll()]
            source.close()
        return values

    assert asyncio.run(read())[10:] == ["late"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-e", "--offset", "3"), "give --offset or --from-beginning, and not both"),
        (("--offset", "soon"), "'soon' is no offset: write beginning"),
        (("--offset", "@soon"), "'soon' is no time"),
        (("--regex", "--partition", "x"), "'--partition'"),
        (("-g", "g", "--offset", "3"), "a group decides on partitions and offsets itself"),
    ],
)
def test_mistakes(kbroker: Kbroker, arguments: tuple[str, ...], message: str) -> None:
    result = kbroker("consume", "t", *arguments)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err


def test_a_pattern_that_is_none(kbroker: Kbroker) -> None:
    result = kbroker("consume", "(", "--regex")
    assert (result.code, result.err.count("\n")) == (2, 1)
