"""BrokerHeartbeat: Kafka's own answers, a broker's life in heartbeats, and stale brokers."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply, broker_heartbeat
from kbroker.controller.brokers.broker_sessions import BrokerIncarnation, BrokerSessions
from kbroker.controller.brokers.heartbeats import BrokerHeartbeats
from kbroker.model import uuid_from_string
from kbroker.ports import at_once
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest
from kbroker.protocol.messages.stored.metadata_records import BrokerRegistrationChangeRecord
from tests.controller.cluster import DIRECTORY, Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)

OTHER = b"o" * 16


def known(case: Case) -> BrokerHeartbeats:
    """What the controller knew of the brokers: each had read its registration, the active ones up
    to the lowest active offset.
    """
    context = decision_context(case["state"])
    heartbeats = BrokerHeartbeats()
    before: dict[int, Any] = {}
    for fields in case["state"]["brokers"]:
        number = fields["id"]
        after = {**before, number: context.image.brokers[number]}
        heartbeats.follow(before, after, offset=fields["registerBrokerRecordOffset"])
        before = after
        offset = case["lowestActiveOffset"]
        heartbeats.touch(number, is_fenced=fields["fenced"], metadata_offset=offset)
        if fields["inControlledShutdown"]:
            asks = number == case["request"]["brokerId"]
            heartbeats.begin_controlled_shutdown(
                number, case["controlledShutdownOffset"] if asks else 0
            )
    assert heartbeats.lowest_active_offset() == case["lowestActiveOffset"]
    return heartbeats


def test_kafkas_answers() -> None:
    def decide(case: Case) -> object:
        fields = case["request"]
        request = BrokerHeartbeatRequest(
            broker_id=fields["brokerId"],
            broker_epoch=fields["brokerEpoch"],
            current_metadata_offset=fields["currentMetadataOffset"],
            want_fence=fields["wantFence"],
            want_shut_down=fields["wantShutDown"],
            offline_log_dirs=[uuid_from_string(each) for each in fields["offlineLogDirs"]],
        )
        context = decision_context(case["state"])
        try:
            result = at_once(
                broker_heartbeat(context, known(case), request, next_offset=lambda: 500)
            )
        except KafkaError as error:
            return error.code.name
        reply = result.response
        shown = {
            "isCaughtUp": reply.is_caught_up,
            "isFenced": reply.is_fenced,
            "inControlledShutdown": reply.in_controlled_shutdown,
            "shouldShutDown": reply.should_shut_down,
        }
        return shown, record_fields(result.records)

    def expected(case: Case) -> object:
        if "exception" in case:
            return case["exception"]
        return case["response"], expected_records(case)

    compare(
        "controller",
        700,
        decide,
        expected,
        select=lambda case: case["api"] == "BrokerHeartbeat",
    )


FENCED = HeartbeatReply(
    is_caught_up=True, is_fenced=True, in_controlled_shutdown=False, should_shut_down=False
)
ACTIVE = HeartbeatReply(
    is_caught_up=True, is_fenced=False, in_controlled_shutdown=False, should_shut_down=False
)
LEAVING = HeartbeatReply(
    is_caught_up=True, is_fenced=False, in_controlled_shutdown=True, should_shut_down=False
)
MAY_STOP = HeartbeatReply(
    is_caught_up=True, is_fenced=True, in_controlled_shutdown=False, should_shut_down=True
)


def test_heartbeats_of_a_single_broker_from_registration_to_the_end() -> None:
    cluster = Cluster(brokers=())
    cluster.register(1)
    steps: list[tuple[dict[str, bool], HeartbeatReply, bool]] = [
        ({"fence": True}, FENCED, True),
        ({}, ACTIVE, False),
        ({}, ACTIVE, False),
        ({"fence": True}, FENCED, True),
        ({}, ACTIVE, False),
        ({"stop": True}, LEAVING, False),
        ({"stop": True}, MAY_STOP, True),
        ({"stop": True}, MAY_STOP, True),
    ]
    for number, (wish, reply, is_fenced) in enumerate(steps):
        assert cluster.beat(1, **wish) == reply, number
        assert cluster.image.brokers[1].fenced is is_fenced, number
        if number == 1:
            cluster.create(topic("t"))


def test_a_broker_that_leads_nothing_stops_at_once() -> None:
    assert Cluster().beat(1, stop=True) == MAY_STOP


def test_a_broker_waits_for_the_others_to_know_that_it_leads_no_more() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2, 3]]))
    assert cluster.beat(1, stop=True) == LEAVING
    for other in (2, 3):
        assert cluster.beat(1, stop=True) == LEAVING
        cluster.beat(other)
    assert cluster.beat(1, stop=True) == MAY_STOP


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]]))
    cluster.beat(1, stop=True)
    written = len(cluster.log)
    for wish in ({"stop": True}, {"fence": True}, {}):
        assert cluster.beat(1, **wish) == LEAVING
    assert cluster.beat(2) == cluster.beat(2) == ACTIVE
    assert len(cluster.log) == written


def test_a_broker_is_unfenced_once_it_has_read_its_registration() -> None:
    cluster = Cluster(brokers=())
    epoch = cluster.register(1)

    def beat(offset: int) -> HeartbeatReply:
        return cluster.run(
            cluster.controller.broker_heartbeat(
                BrokerHeartbeatRequest(
                    broker_id=1,
                    broker_epoch=epoch,
                    current_metadata_offset=offset,
                    want_fence=False,
                    want_shut_down=False,
                )
            )
        )

    early = beat(epoch - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    assert beat(epoch) == ACTIVE


@pytest.mark.parametrize(("level", "is_told"), [(30, True), (29, False)])
def test_cordoned_directories_are_told_by_heartbeats(level: int, is_told: bool) -> None:
    cluster = Cluster()
    cluster.level(level)
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=cluster.epoch_of(1),
        current_metadata_offset=cluster.image.offset,
        want_fence=False,
        want_shut_down=False,
        cordoned_log_dirs=[DIRECTORY],
    )
    cluster.run(cluster.controller.broker_heartbeat(request))
    assert cluster.image.brokers[1].cordoned_log_dirs == ((DIRECTORY,) if is_told else None)


def test_stale_brokers_are_fenced_one_by_one() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.create(topic("t", assignments=[[1, 2, 3]]))
    sessions = BrokerSessions(9000)
    for number in (2, 1, 3):
        sessions.contact(BrokerIncarnation(number, cluster.epoch_of(number)), number)
    sessions.contact(BrokerIncarnation(1, 0), 0)  # of a former life
    sessions.contact(BrokerIncarnation(9, 0), 0)  # of a broker that was unregistered
    sessions.contact(BrokerIncarnation(3, cluster.epoch_of(3)), 9000)
    fenced = []
    while cluster.run(result := at_once(cluster.controller.fence_stale_broker(sessions, 9010))):
        fenced += [
            record.broker_id
            for record in result.records
            if isinstance(record, BrokerRegistrationChangeRecord)
        ]
    assert fenced == [2, 1]
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (3, (3,))


def test_a_broker_that_has_stopped_is_not_fenced_again() -> None:
    cluster = Cluster()
    sessions = BrokerSessions(9000)
    sessions.contact(BrokerIncarnation(1, cluster.epoch_of(1)), 0)
    cluster.shut_down(1)
    result = at_once(cluster.controller.fence_stale_broker(sessions, 9001))
    assert (list(result.records), result.response) == ([], True)


def test_a_new_active_controller_learns_from_the_next_heartbeats() -> None:
    """A broker in controlled shutdown asks again; its offset is that of what it asks now."""
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]]))
    cluster.beat(1, stop=True)
    cluster.controller.start_from(cluster.image)
    assert cluster.image.brokers[1].in_controlled_shutdown
    assert cluster.beat(1, stop=True) == MAY_STOP
