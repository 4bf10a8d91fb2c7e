"""AlterClientQuotas: what the controller makes of alterations."""

from __future__ import annotations

import pytest

from kbroker.controller.configs.client_quotas import (
    QUOTA_ALTERED,
    QuotaAlteration,
    QuotaOperation,
    QuotaOutcome,
    quota_entity,
)
from kbroker.controller.result import MAX_RECORDS_PER_OPERATION
from kbroker.metadata.image import QuotaEntity
from kbroker.metadata.snapshot import image_records
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClientQuotaRecord
from tests.controller.cluster import Cluster

ALICE = quota_entity({"user": "alice"})
PRODUCE = "producer_byte_rate"


def alteration(entity: QuotaEntity, **values: float | None) -> QuotaAlteration:
    return QuotaAlteration(entity, [QuotaOperation(*each) for each in values.items()])


def alter(
    cluster: Cluster, *alterations: QuotaAlteration, validate_only: bool = False
) -> dict[QuotaEntity, QuotaOutcome]:
    return cluster.run(
        at_once(cluster.controller.alter_client_quotas(alterations, validate_only=validate_only))
    )


def refusal(entity: QuotaEntity, **values: float | None) -> str | None:
    """The message of the only outcome, which is INVALID_REQUEST."""
    cluster = Cluster()
    (outcome,) = alter(cluster, alteration(entity, **values)).values()
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert not cluster.image.client_quotas
    return outcome.message


def test_quotas_are_set_changed_and_removed() -> None:
    cluster = Cluster()
    pair = quota_entity({"user": "alice", "client-id": None})
    done = alter(
        cluster,
        alteration(ALICE, producer_byte_rate=1000.0, request_percentage=50.5),
        alteration(pair, consumer_byte_rate=7.0),
        alteration(quota_entity({"ip": "127.0.0.1"}), connection_creation_rate=3.0),
    )
    assert set(done.values()) == {QUOTA_ALTERED}
    assert cluster.image.client_quotas == {
        ALICE: {"producer_byte_rate": 1000.0, "request_percentage": 50.5},
        (("client-id", None), ("user", "alice")): {"consumer_byte_rate": 7.0},
        (("ip", "127.0.0.1"),): {"connection_creation_rate": 3.0},
    }
    alter(cluster, alteration(ALICE, producer_byte_rate=2000.0, request_percentage=None))
    assert cluster.image.client_quotas[ALICE] == {PRODUCE: 2000.0}
    alter(cluster, alteration(ALICE, producer_byte_rate=None))
    assert ALICE not in cluster.image.client_quotas


def test_quotas_survive_a_snapshot() -> None:
    cluster = Cluster()
    alter(cluster, alteration(quota_entity({"client-id": None}), producer_byte_rate=5.0))
    records = [r for r in image_records(cluster.image) if isinstance(r, ClientQuotaRecord)]
    (record,) = records
    assert [(part.entity_type, part.entity_name) for part in record.entity] == [("client-id", None)]
    assert (record.key, record.value, record.remove) == (PRODUCE, 5.0, False)


def test_nothing_is_written_on_trial_or_for_what_stands() -> None:
    cluster = Cluster()
    written = len(cluster.log)
    assert alter(cluster, alteration(ALICE, producer_byte_rate=5.0), validate_only=True)
    assert alter(cluster, alteration(ALICE, producer_byte_rate=None))[ALICE] == QUOTA_ALTERED
    assert len(cluster.log) == written
    alter(cluster, alteration(ALICE, producer_byte_rate=5.0))
    written = len(cluster.log)
    alter(cluster, alteration(ALICE, producer_byte_rate=5.0))
    assert len(cluster.log) == written


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        (
            {"ip": "127.0.0.1", "user": "alice"},
            "Invalid quota entity combination, IP entity should"
            "not be combined with User or ClientId",
        ),
        ({"ip": "not an address"}, "not an address is not a valid IP or resolvable host."),
    ],
)
def test_invalid_entities(parts: dict[str, str | None], message: str) -> None:
    assert refusal(quota_entity(parts), producer_byte_rate=1.0) == message


@pytest.mark.parametrize(
    ("parts", "key", "value", "message"),
    [
        ({"user": "a"}, "nosuch", 1.0, "Invalid configuration key nosuch"),
        (
            {"user": "a"},
            "connection_creation_rate",
            1.0,
            "Invalid configuration key connection_creation_rate",
        ),
        ({"ip": None}, PRODUCE, 1.0, f"Invalid configuration key {PRODUCE}"),
        ({"user": "a"}, PRODUCE, 0.0, f"Quota {PRODUCE} must be greater than 0"),
        ({"user": "a"}, PRODUCE, -1.0, f"Quota {PRODUCE} must be greater than 0"),
        ({"user": "a"}, PRODUCE, 1.5, f"{PRODUCE} cannot be a fractional value."),
        (
            {"user": "a"},
            PRODUCE,
            1e19,
            f"Proposed value for {PRODUCE} is too large for a LONG.",
        ),
        (
            {"ip": None},
            "connection_creation_rate",
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
    ],
)
def test_invalid_values(parts: dict[str, str | None], key: str, value: float, message: str) -> None:
    assert refusal(quota_entity(parts), **{key: value}) == message


def test_limits_of_values() -> None:
    cluster = Cluster()
    done = alter(
        cluster,
        alteration(ALICE, producer_byte_rate=2.0**63, controller_mutation_rate=0.001),
        alteration(quota_entity({"ip": None}), connection_creation_rate=float(2**31 - 1)),
    )
    assert set(done.values()) == {QUOTA_ALTERED}


def test_an_invalid_value_leaves_the_other_values_of_the_entity_alone() -> None:
    cluster = Cluster()
    bob = quota_entity({"user": "bob"})
    done = alter(
        cluster,
        alteration(ALICE, producer_byte_rate=5.0, consumer_byte_rate=-1.0),
        alteration(bob, producer_byte_rate=5.0),
    )
    assert [outcome.error for outcome in done.values()] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert list(cluster.image.client_quotas) == [bob]


def test_an_entity_named_again_is_refused_and_its_first_alteration_counts() -> None:
    cluster = Cluster()
    done = alter(
        cluster,
        alteration(ALICE, producer_byte_rate=5.0),
        alteration(ALICE, producer_byte_rate=6.0),
    )
    message = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert done == {ALICE: QuotaOutcome(ErrorCode.INVALID_REQUEST, message)}
    assert cluster.image.client_quotas == {ALICE: {PRODUCE: 5.0}}


def test_a_key_named_again_refuses_the_entity() -> None:
    cluster = Cluster()
    twice = QuotaAlteration(ALICE, [QuotaOperation(PRODUCE, 5.0), QuotaOperation(PRODUCE, 6.0)])
    assert alter(cluster, twice)[ALICE].error is ErrorCode.INVALID_REQUEST
    assert not cluster.image.client_quotas


def test_too_many_records_are_refused() -> None:
    cluster = Cluster()
    many = [
        alteration(quota_entity({"user": f"u{number}"}), producer_byte_rate=1.0)
        for number in range(MAX_RECORDS_PER_OPERATION + 1)
    ]
    with pytest.raises(KafkaError) as raised:
        alter(cluster, *many)
    assert raised.value.code is ErrorCode.POLICY_VIOLATION


def test_a_decision_on_much_is_made_in_steps() -> None:
    cluster = Cluster()
    operations = [QuotaOperation(f"key{number}", None) for number in range(5000)]
    empty = [QuotaAlteration(quota_entity({}), []) for _ in range(5000)]
    for alterations in ([QuotaAlteration(ALICE, operations)], empty):
        steps = cluster.controller.alter_client_quotas(alterations, validate_only=False)
        assert sum(1 for _ in steps) > 30
