"""The states that heartbeats lead to: Kafka's own, and how registrations change them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kbroker.controller.brokers.heartbeats import (
    NO_ACTIVE_BROKERS,
    UNKNOWN_OFFSET,
    BrokerControlState,
    BrokerHeartbeats,
    Wishes,
)
from kbroker.metadata.image import BrokerRegistration
from kbroker.model import InvariantError
from tests.controller.decisions import Case, compare


def broker(number: int, *, epoch: int = 5, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(number, epoch, bytes(16), {}, fenced=fenced)


def registered(*brokers: BrokerRegistration, offset: int = 0) -> BrokerHeartbeats:
    heartbeats = BrokerHeartbeats()
    heartbeats.follow({}, {each.id: each for each in brokers}, offset=offset)
    return heartbeats


def test_kafkas_states() -> None:
    def decide(case: Case) -> object:
        listed = [broker(each["id"], fenced=each["fenced"]) for each in case["brokers"]]
        heartbeats = registered(*listed, offset=case["registerBrokerRecordOffset"])
        for each in case["brokers"]:
            number = each["id"]
            heartbeats.touch(
                number, is_fenced=each["fenced"], metadata_offset=each["metadataOffset"]
            )
            if each["controlledShutdownOffset"] >= 0:
                heartbeats.begin_controlled_shutdown(number, each["controlledShutdownOffset"])
        wishes = Wishes(case["wantFence"], case["wantShutDown"], case["currentMetadataOffset"])
        asking = case["broker"]
        after = heartbeats.next_state(
            asking, wishes, has_leaderships=lambda: bool(case["hasLeaderships"])
        )
        before = heartbeats.status(asking).state
        return before.name, after.name, heartbeats.lowest_active_offset()

    def expected(case: Case) -> object:
        lowest = case["lowestActiveOffset"]
        return case["current"], case["next"], NO_ACTIVE_BROKERS if lowest is None else lowest

    compare("heartbeats", 1000, decide, expected)


def test_registrations_are_followed() -> None:
    one, two = broker(1, fenced=True), broker(2)
    heartbeats = registered(one, two, offset=40)
    assert heartbeats.status(1).registration_offset == 40
    heartbeats.touch(2, is_fenced=False, metadata_offset=77)
    unfenced = replace(one, fenced=False)
    heartbeats.follow({1: one, 2: two}, {1: unfenced, 2: two}, offset=50)
    assert heartbeats.status(1).state is BrokerControlState.UNFENCED
    assert heartbeats.status(1).registration_offset == 40
    assert heartbeats.status(2).metadata_offset == 77
    again = broker(2, epoch=60, fenced=True)
    heartbeats.follow({1: unfenced, 2: two}, {1: unfenced, 2: again}, offset=60)
    assert heartbeats.status(2).metadata_offset == UNKNOWN_OFFSET
    assert heartbeats.status(2).registration_offset == 60
    heartbeats.follow({1: unfenced, 2: again}, {2: again}, offset=61)
    with pytest.raises(InvariantError):
        heartbeats.status(1)


def test_a_controlled_shutdown_has_the_offset_at_which_it_began() -> None:
    heartbeats = registered(broker(1), broker(2, fenced=True))
    heartbeats.begin_controlled_shutdown(1, 30)
    heartbeats.begin_controlled_shutdown(1, 40)
    assert heartbeats.status(1).controlled_shutdown_offset == 30
    heartbeats.touch(1, is_fenced=False, metadata_offset=31)
    assert heartbeats.status(1).state is BrokerControlState.CONTROLLED_SHUTDOWN
    assert heartbeats.lowest_active_offset() == NO_ACTIVE_BROKERS
    heartbeats.touch(1, is_fenced=True, metadata_offset=31)
    assert heartbeats.status(1).state is BrokerControlState.FENCED
    with pytest.raises(InvariantError):
        heartbeats.begin_controlled_shutdown(2, 30)
