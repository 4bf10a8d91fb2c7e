"""Apache Kafka 4.3.1 goes on with a streams group that kbroker keeps, its members at work, and the
other way round.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupDescribeRequest
from kbroker.testing import EmbeddedBroker
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.e2e.wire import call
from tests.reference.conversation import await_topics, settle
from tests.reference.step import State
from tests.reference.streams_groups import (
    FIRST,
    OVERRIDES,
    SECOND,
    before_steps,
    heartbeat,
    joining,
    tasks,
)

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

RETRIED = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
HALF = {"active": tasks(_0=[0], _1=[0])}


def ask(port: int, build: Any) -> Any:
    """One heartbeat, asked again while the group is loaded. Its answer, free of errors."""
    deadline = time.monotonic() + 30
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        while True:
            answer: Any = call(connection, build(State()), 0)
            if answer.error_code not in RETRIED or time.monotonic() > deadline:
                assert answer.error_code == ErrorCode.NONE, answer
                return answer
            time.sleep(0.1)


def described(port: int) -> list[object]:
    """State, epochs, and by member its epoch, what it has and what it shall have."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        answer: Any = call(connection, StreamsGroupDescribeRequest(group_ids=["s1"]), 0)
    (group,) = answer.groups
    assert group.error_code == ErrorCode.NONE
    members = {
        member.member_id: (
            member.member_epoch,
            str(member.assignment),
            str(member.target_assignment),
        )
        for member in group.members
    }
    return [group.group_state, group.group_epoch, group.assignment_epoch, sorted(members.items())]


def test_either_broker_goes_on_with_the_others_group(tmp_path: Path) -> None:
    controller_port = free_port()
    voters = {"controller.quorum.voters": f"1@127.0.0.1:{controller_port}"}
    data = tmp_path / "data"
    with EmbeddedBroker({**OVERRIDES, **voters}, data=data) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        settle("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            call(connection, next(before_steps()).request(State()), 7)
        ask(port, joining(FIRST))
        await_topics("127.0.0.1", port, ("s1-rep", "s1-log"))
        ask(port, heartbeat(FIRST, 2, active=[]))
        ask(port, joining(SECOND))
        told = ask(port, heartbeat(FIRST, 3, active=tasks(_0=[0, 1], _1=[0, 1])))
        assert told.active_tasks is not None  # it shall give back, and has not yet
        before = described(port)
    with ApacheKafka(data, overrides=OVERRIDES, controller_port=controller_port) as kafka:
        time.sleep(3)  # the port opens before the broker is unfenced
        waiting = ask(kafka.port, heartbeat(SECOND, 4, active=[]))
        assert described(kafka.port) == before  # the topics have the same hash: nothing is new
        epoch = waiting.member_epoch
        ask(kafka.port, heartbeat(FIRST, 3, **HALF))
        got = ask(kafka.port, heartbeat(SECOND, epoch, active=[]))
        assert [one.partitions for one in got.active_tasks] == [[1], [1]]
        before = described(kafka.port)
    with EmbeddedBroker({**OVERRIDES, **voters}, data=data) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        settle("127.0.0.1", port)
        assert described(port) == before
        first = ask(port, heartbeat(FIRST, got.member_epoch, **HALF))
        assert first.member_epoch == got.member_epoch
        assert ask(port, heartbeat(SECOND, got.member_epoch)).active_tasks is None
