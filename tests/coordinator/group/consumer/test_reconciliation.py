"""One member's transition from its current to its target partitions, one heartbeat at a time."""

from __future__ import annotations

from msgspec.structs import replace

from kbroker.coordinator.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    places_of,
    reconcile,
)
from kbroker.coordinator.group.membership.epochs import STATIC_LEAVE_EPOCH
from kbroker.model import Uuid

A, B = b"a" * 16, b"b" * 16
STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS
NOTHING: dict[Uuid, frozenset[int]] = {}


def step(
    current: CurrentAssignment,
    target: dict[Uuid, set[int]],
    *,
    epoch: int = 5,
    taken: set[tuple[Uuid, int]] | None = None,
    subscribed: tuple[Uuid, ...] = (A, B),
    changed: bool = False,
    reported: dict[Uuid, set[int]] | None = None,
) -> CurrentAssignment:
    """taken: partitions that another member has."""
    return reconcile(
        current,
        target_epoch=epoch,
        target={topic: frozenset(indexes) for topic, indexes in target.items()},
        is_free=lambda topic, index: (topic, index) not in (taken or set()),
        is_subscribed=lambda topic: topic in subscribed,
        subscription_changed=changed,
        reported=None
        if reported is None
        else {topic: frozenset(indexes) for topic, indexes in reported.items()},
    )


HAS_TWO = CurrentAssignment(4, 3, STABLE, {A: {0: 2, 1: 4}})


def test_a_new_member_gets_what_is_free_in_the_targets_epoch() -> None:
    found = step(CurrentAssignment(), {A: {0, 1}, B: {0}}, taken={(A, 1)})
    assert found == CurrentAssignment(5, 0, UNRELEASED, {A: {0: 5}, B: {0: 5}})
    assert step(found, {A: {0, 1}, B: {0}}, taken={(A, 1)}) is found, "nothing changes"
    complete = step(found, {A: {0, 1}, B: {0}})
    assert complete == CurrentAssignment(5, 5, STABLE, {A: {0: 5, 1: 5}, B: {0: 5}})


def test_a_member_that_is_up_to_date_stays_as_it_is() -> None:
    current = CurrentAssignment(5, 4, STABLE, {A: {0: 5}})
    assert step(current, {A: {7}}) is current, "the target of this epoch was reached"
    assert step(current, {A: {0}}, changed=True) is current


def test_partitions_are_revoked_before_the_epoch_rises() -> None:
    revoking = step(HAS_TWO, {A: {1, 2}})
    assert revoking == CurrentAssignment(4, 4, UNREVOKED, {A: {1: 4}}, {A: {0: 2}})
    assert step(revoking, {A: {1, 2}}) is revoking, "it did not say what it has"
    assert step(revoking, {A: {1, 2}}, reported={A: {0, 1}}) is revoking
    done = step(revoking, {A: {1, 2}}, reported={A: {1}})
    assert done == CurrentAssignment(5, 4, STABLE, {A: {1: 4, 2: 5}})


def test_what_a_member_has_given_back_already_is_not_asked_for() -> None:
    found = step(HAS_TWO, {A: {1}}, reported={A: {1}})
    assert found == CurrentAssignment(5, 4, STABLE, {A: {1: 4}})


def test_a_target_that_changes_during_a_revocation() -> None:
    """First the former revocation ends; then the partitions that are not in the new target are
    revoked.
    """
    revoking = step(HAS_TWO, {A: {1}})
    again = step(revoking, {A: {2}}, epoch=6, reported={A: {1}})
    assert (again.state, again.member_epoch) == (UNREVOKED, 4)
    assert (again.assigned, again.revoking) == ({}, {A: {1: 4}})


def test_unsubscribed_topics_are_revoked_at_once() -> None:
    current = CurrentAssignment(5, 4, STABLE, {A: {0: 5}, B: {0: 5}})
    found = step(current, {A: {0}, B: {0}}, subscribed=(A,), changed=True)
    assert found == CurrentAssignment(5, 5, UNREVOKED, {A: {0: 5}}, {B: {0: 5}})
    found = step(current, {A: {0}, B: {0}}, subscribed=(A,), changed=True, reported={A: {0}})
    assert found == CurrentAssignment(5, 5, STABLE, {A: {0: 5}})


def test_topics_that_are_unsubscribed_while_others_are_revoked() -> None:
    revoking = CurrentAssignment(4, 4, UNREVOKED, {A: {1: 4}, B: {0: 4}}, {B: {1: 4}})
    found = step(revoking, {A: {1}}, subscribed=(A,), changed=True)
    assert found == replace(revoking, assigned={A: {1: 4}}, revoking={B: {0: 4, 1: 4}})


def test_a_target_without_subscription_gives_nothing() -> None:
    found = step(CurrentAssignment(), {A: {0}, B: {0}}, subscribed=(A,))
    assert found == CurrentAssignment(5, 0, STABLE, {A: {0: 5}})


def test_a_state_of_a_later_kafka_is_worked_out_anew() -> None:
    unknown = replace(HAS_TWO, state=MemberState.UNKNOWN)
    assert step(unknown, {A: {0, 1}}) == CurrentAssignment(5, 4, STABLE, {A: {0: 2, 1: 4}})


def test_all_that_a_member_has() -> None:
    current = CurrentAssignment(4, 4, UNREVOKED, {A: {1: 4}}, {A: {0: 2}, B: {3: 1}})
    assert current.held() == {A: {0, 1}, B: {3}}
    assert places_of(current.held()) == {(A, 0), (A, 1), (B, 3)}
    assert current.owns_all({A: frozenset({1})}) and current.owns_all(NOTHING)
    assert not current.owns_all({A: frozenset({0, 1})}), "what it gives back is not its own"
    assert not current.owns_all({B: frozenset({3})})


def test_having_all_of_an_epoch() -> None:
    assert HAS_TWO.is_at(4) and not HAS_TWO.is_at(5)
    assert not replace(HAS_TWO, state=UNRELEASED).is_at(4)


def test_a_static_member_keeps_its_partitions_while_it_is_away() -> None:
    current = CurrentAssignment(4, 3, UNREVOKED, {A: {0: 2}}, {A: {1: 2}})
    kept = {A: {0: 0}}
    assert current.away() == CurrentAssignment(STATIC_LEAVE_EPOCH, 3, STABLE, kept)
    assert current.returned() == CurrentAssignment(0, 0, STABLE, kept)
