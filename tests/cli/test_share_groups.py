"""`kbroker groups` with a share group: what `kafka-share-groups` does with it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from kbroker.testing import EmbeddedBroker
from tests.cli.conftest import Result
from tests.e2e.wire import call
from tests.reference.conversation import settle

Kbroker = Callable[..., Result]


def described(kbroker: Kbroker, group: str) -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for line in kbroker("groups", "describe", group, "--json").lines]
    names = ("topic", "partition", "committed", "end", "lag", "members")
    return [tuple(row[name] for name in names) for row in rows]


def beat(broker: EmbeddedBroker, group: str, topic: str, member: str, epoch: int) -> int:
    """Until it has something, if it joins; the member's epoch."""
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    settle("127.0.0.1", port)
    deadline = time.monotonic() + 30
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        while time.monotonic() < deadline:
            request = ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                subscribed_topic_names=[topic] if epoch >= 0 else None,
            )
            answer: Any = call(connection, request, 1)
            assert answer.error_code == ErrorCode.NONE
            if epoch < 0 or (answer.assignment and answer.assignment.topic_partitions):
                return int(answer.member_epoch)
            epoch = answer.member_epoch
    raise AssertionError("it was given nothing")


def test_a_share_group_is_shown_reset_and_deleted(
    kbroker: Kbroker, kafka_broker: EmbeddedBroker, kafka_topic: str
) -> None:
    topic, group = kafka_topic, f"share-{kafka_topic}"
    kbroker("produce", topic, text="\n".join(map(str, range(10))))
    to_earliest = ("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--share")
    (row,) = [json.loads(line) for line in kbroker(*to_earliest, "--json").lines]
    assert (row["committed"], row["new"]) == (None, 0)
    assert not any(line.startswith(f"{group}\t") for line in kbroker("groups", "list").lines)
    assert kbroker(*to_earliest, "--execute").code == 0
    assert f"{group}\tEmpty\tshare\tshare" in kbroker("groups", "list").lines
    assert described(kbroker, group) == [(topic, 0, 0, 10, 10, [])]

    for member in ("one", "two"):
        beat(kafka_broker, group, topic, member, 0)
    assert [row[-1] for row in described(kbroker, group)] == [["one", "two"]]
    members = list(map(json.loads, kbroker("groups", "members", group, "--json").lines))
    assert [(each["member"], each["partitions"]) for each in members] == [
        ("one", [f"{topic}-0"]),
        ("two", [f"{topic}-0"]),
    ]
    refused = kbroker("groups", "reset-offsets", group, "--to-latest", "--execute")
    assert refused.code == 1
    assert "NON_EMPTY_GROUP" in refused.err or "empty" in refused.err
    assert kbroker("groups", "delete-offsets", group, topic).code == 1
    assert kbroker("groups", "delete", group).code == 1
    for member in ("one", "two"):
        beat(kafka_broker, group, topic, member, -1)

    assert kbroker("groups", "reset-offsets", group, "--to-offset", "4", "--execute").code == 0
    assert described(kbroker, group) == [(topic, 0, 4, 10, 6, [])]
    assert kbroker("groups", "export", group).lines == [f"{topic},0,4"]
    assert kbroker("groups", "delete-offsets", group, topic).code == 0
    assert described(kbroker, group) == []
    assert kbroker("groups", "delete", group).code == 0
    assert kbroker("groups", "delete", group).code == 1


def test_a_group_of_another_kind_is_not_made_a_share_group(
    kbroker: Kbroker, kafka_topic: str
) -> None:
    group = f"classic-{kafka_topic}"
    kbroker("produce", kafka_topic, text="1\n2")
    kbroker("consume", kafka_topic, "--group", group, "--from-beginning", "-n", "2")
    share = kbroker("groups", "reset-offsets", group, "--to-earliest", "--share", "--execute")
    assert share.code == 1
    assert described(kbroker, group) == [(kafka_topic, 0, 2, 2, 0, [])]
