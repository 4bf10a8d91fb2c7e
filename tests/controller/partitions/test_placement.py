"""Replica placement: Kafka's own placements, and what holds for all of them."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kbroker.controller.partitions.placement import (
    check_replicas,
    default_directory,
    place,
    usable_for_placement,
)
from kbroker.metadata.image import BrokerRegistration, MetadataImage
from kbroker.model import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.controller.decisions import Case, compare

D1, D2 = b"1" * 16, b"2" * 16


def broker(broker_id: int, *, fenced: bool = False, rack: str | None = None) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 0, bytes(16), {}, fenced=fenced, rack=rack)


class Drawn:
    """Draws what a case says: always the first, always the last, or the numbers it lists."""

    def __init__(self, case: Case) -> None:
        self._is_last = case["mode"] == "last"
        draws = case.get("draws")  # none are listed where placement is refused
        self._draws = None if draws is None else iter(draws)

    def randrange(self, stop: int, /) -> int:
        if self._draws is None:
            return stop - 1 if self._is_last else 0
        bound, value = next(self._draws)
        assert bound == stop
        return int(value)


def test_kafkas_placements() -> None:
    """Racks are asked in the order in which they appear: the listed draws belong to Kafka's."""

    def decide(case: Case) -> object:
        order = case.get("rackOrder")
        listed = case["brokers"]
        if order is not None:
            listed = sorted(listed, key=lambda each: order.index(each["rack"]))
        brokers = [broker(each["id"], fenced=each["fenced"], rack=each["rack"]) for each in listed]
        try:
            return place(
                brokers,
                partition_count=case["numPartitions"],
                replication_factor=case["numReplicas"],
                random=Drawn(case),
            )
        except KafkaError as error:
            return error.code, error.message

    def expected(case: Case) -> object:
        if "exception" in case:
            return ErrorCode.INVALID_REPLICATION_FACTOR, case["message"]
        return case["placed"]

    compare("placement", 500, decide, expected)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 40), st.integers(0, 7), st.integers())
def test_lists_are_of_different_brokers_and_led_by_unfenced_ones(
    brokers: int, replicas: int, partitions: int, fenced: int, seed: int
) -> None:
    replicas, fenced = min(replicas, brokers), min(fenced, brokers - 1)
    registered = [broker(i, fenced=i < fenced) for i in range(brokers)]
    placed = place(
        registered, partition_count=partitions, replication_factor=replicas, random=Random(seed)
    )
    assert len(placed) == partitions
    for each in placed:
        assert len(set(each)) == len(each) == replicas
        assert each[0] >= fenced
        idle = [replica < fenced for replica in each]
        assert idle == sorted(idle)
    leaders = Counter(each[0] for each in placed)
    counts = [leaders[i] for i in range(fenced, brokers)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(2, 4), st.integers(1, 3), st.integers())
def test_replicas_stand_in_different_racks(racks: int, in_each: int, seed: int) -> None:
    registered = [broker(i, rack=f"rack-{i % racks}") for i in range(racks * in_each)]
    placed = place(registered, partition_count=30, replication_factor=racks, random=Random(seed))
    for replicas in placed:
        assert len({replica % racks for replica in replicas}) == racks


def test_brokers_that_get_no_new_replicas() -> None:
    one = replace(broker(1), log_dirs=(D1, D2))
    brokers = [
        one,
        replace(broker(2), in_controlled_shutdown=True),
        replace(broker(3), log_dirs=(D1, D2), cordoned_log_dirs=(D2, D1)),
        replace(broker(4), log_dirs=(D1, D2), cordoned_log_dirs=(D2,)),
        replace(broker(5), cordoned_log_dirs=(D2,)),
        broker(0, fenced=True),
    ]
    image = MetadataImage(brokers={each.id: each for each in brokers})
    assert [each.id for each in usable_for_placement(image)] == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("replicas", "factor", "message"),
    [
        pytest.param([], None, "includes an empty replica list", id="empty"),
        pytest.param([1, 9], None, "includes broker 9, but no such broker", id="not registered"),
        pytest.param([2, 1, 2], None, "includes the broker 2 more than once", id="twice"),
        pytest.param([2, 1], 3, "which have 3 replica", id="another number than the others"),
    ],
)
def test_manual_assignments_that_are_refused(
    replicas: list[int], factor: int | None, message: str
) -> None:
    image = MetadataImage(brokers={i: broker(i) for i in (1, 2, 3)})
    check_replicas(image, [3, 1], 2)
    with pytest.raises(KafkaError, match=message) as caught:
        check_replicas(image, replicas, factor)
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("log_dirs", "directory"),
    [((D1,), D1), ((D1, D2), UNASSIGNED_DIRECTORY), ((), MIGRATING_DIRECTORY)],
)
def test_the_directory_of_a_new_replica(log_dirs: tuple[bytes, ...], directory: bytes) -> None:
    broker = BrokerRegistration(1, 1, bytes(16), {}, log_dirs=log_dirs)
    assert default_directory(broker) == directory
    assert default_directory(None) == UNASSIGNED_DIRECTORY
