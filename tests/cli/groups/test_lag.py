"""`kbroker groups lag` and `members` against a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from kbroker.cli.groups.lag import lag_of
from kbroker.client.cluster import Client
from kbroker.client.group import GroupConsumer
from kbroker.testing import EmbeddedBroker

Kbroker = Callable[..., Any]


def test_lag_of_partitions() -> None:
    rows = [
        {"topic": "b", "lag": 5},
        {"topic": "a", "lag": None},
        {"topic": "b", "lag": 2},
    ]
    assert lag_of(rows) == {"topics": 2, "partitions": 3, "lag": 7, "max_lag": 5}
    unknown = {"topics": 1, "partitions": 1, "lag": None, "max_lag": None}
    assert lag_of([{"topic": "a", "lag": None}]) == unknown
    assert lag_of([]) == {"topics": 0, "partitions": 0, "lag": 0, "max_lag": None}


def test_a_summary(kbroker: Kbroker, kafka_topic: str) -> None:
    group = f"lag-{kafka_topic}"
    kbroker("produce", kafka_topic, text="\n".join(map(str, range(10))))
    kbroker("consume", kafka_topic, "--group", group, "-e", "-n", "4")
    (row,) = map(json.loads, kbroker("groups", "lag", group, "--json").lines)
    assert row == {
        "group": group,
        "state": "Empty",
        "members": 0,
        "topics": 1,
        "partitions": 1,
        "lag": 6,
        "max_lag": 6,
    }
    every = kbroker("groups", "lag")
    assert every.code == 0, every.err
    assert f"{group}\tEmpty\t0\t1\t1\t6\t6" in every.lines
    missing = kbroker("groups", "lag", group, "no-such-group")
    assert (missing.code, len(missing.lines)) == (1, 1)
    assert missing.err.startswith("kbroker: GROUP_ID_NOT_FOUND: ")


def test_members(kbroker: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    group = f"members-{kafka_topic}"
    found: list[Any] = []

    async def read() -> None:
        client = Client(kafka_broker.bootstrap_servers, client_id="reader")
        async with client, GroupConsumer(client, group, [kafka_topic]) as member:
            await member.poll()
            found.append(await asyncio.to_thread(kbroker, "groups", "members", group, "--json"))
            found.append(await asyncio.to_thread(kbroker, "groups", "lag", group, "--json"))

    asyncio.run(read())
    members, lag = found
    (row,) = map(json.loads, members.lines)
    assert row["member"].startswith("reader-")
    assert (row["group"], row["client_id"], row["instance"]) == (group, "reader", None)
    assert row["partitions"] == [f"{kafka_topic}-0"]
    assert row["host"]
    (row,) = map(json.loads, lag.lines)
    assert (row["members"], row["partitions"], row["lag"]) == (1, 1, None)
    after = kbroker("groups", "members", group)
    assert (after.code, after.lines, after.err) == (0, [], f"{group} has no members\n")


def test_groups_are_listed_by_state_and_type(kbroker: Kbroker, kafka_topic: str) -> None:
    group = f"listed-{kafka_topic}"
    kbroker("produce", kafka_topic, text="x")
    kbroker("consume", kafka_topic, "--group", group, "-e", "-n", "1")
    wanted = kbroker("groups", "list", "--state", "empty", "--type", "classic")
    assert group in wanted.out
    assert group not in kbroker("groups", "list", "--state", "Stable").out
    assert group not in kbroker("groups", "list", "--type", "share").out
    gone = kbroker("groups", "delete", group, "--json")
    assert list(map(json.loads, gone.lines)) == [{"group": group}]
