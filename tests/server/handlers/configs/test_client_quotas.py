"""DescribeClientQuotas and AlterClientQuotas as the dispatcher calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.controller.configs.client_quotas import QuotaAlteration, QuotaOutcome
from kbroker.metadata.image import MetadataImage, QuotaEntity
from kbroker.metadata.layered_map import LayeredMap
from kbroker.ports import Deferred, at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs import codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.server.handlers.configs.client_quotas import HANDLERS
from kbroker.server.requests import RequestContext
from tests.controller.cluster import Cluster
from tests.server.slices import Sliced

DESCRIBE, ALTER = HANDLERS
Part = AlterClientQuotasRequest.EntityData
Operation = AlterClientQuotasRequest.OpData
Entry = AlterClientQuotasRequest.EntryData
Component = DescribeClientQuotasRequest.ComponentData

QUOTAS: dict[QuotaEntity, Mapping[str, float]] = {
    (("user", "alice"),): {"producer_byte_rate": 5.0, "request_percentage": 1.5},
    (("client-id", None), ("user", None)): {"consumer_byte_rate": 7.0},
}


class Controller:
    """The port of the handlers, over a controller without a log."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.seen: list[QuotaAlteration] = []

    def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool
    ) -> Deferred[dict[QuotaEntity, QuotaOutcome]]:
        self.seen += alterations
        decision = self.cluster.controller.alter_client_quotas(
            alterations, validate_only=validate_only
        )
        return Deferred.of(self.cluster.run(at_once(decision)))


def describe(*components: Component, strict: bool = False, more: int = 0) -> Any:
    quotas: dict[QuotaEntity, Mapping[str, float]] = dict(QUOTAS)
    quotas |= {(("user", f"u{number}"),): {"producer_byte_rate": 1.0} for number in range(more)}
    sliced = Sliced(limit=1 << 16, image=MetadataImage(client_quotas=LayeredMap(quotas)))
    request = DescribeClientQuotasRequest(components=list(components), strict=strict)
    context = RequestContext(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
    return sliced.answer(DESCRIBE.handle(sliced.services, context, request))


def alter(controller: Controller, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    sliced = Sliced(controller=controller)
    context = RequestContext(ApiKey.ALTER_CLIENT_QUOTAS, 1)
    response = sliced.answer(ALTER.handle(sliced.services, context, request))
    assert isinstance(response, AlterClientQuotasResponse)
    return response


def entry(key: str, value: float, **parts: str | None) -> Entry:
    return Entry(
        entity=[
            Part(entity_type=kind.replace("_", "-"), entity_name=name)
            for kind, name in parts.items()
        ],
        ops=[Operation(key=key, value=value)],
    )


def test_registrations() -> None:
    assert [(h.api_key, h.min_version, h.max_version) for h in HANDLERS] == [
        (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1),
        (ApiKey.ALTER_CLIENT_QUOTAS, 0, 1),
    ]


def test_all_quotas_are_described() -> None:
    response = describe()
    assert isinstance(response, DescribeClientQuotasResponse)
    assert response.entries is not None
    found = {
        tuple((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in response.entries
    }
    assert found == QUOTAS
    assert (response.error_code, response.error_message) == (0, ""), "as Kafka, not null"


def test_a_filter_selects() -> None:
    response = describe(Component(entity_type="user", match_type=0, match="alice"))
    assert response.entries is not None
    assert [part.entity_name for part in response.entries[0].entity] == ["alice"]
    assert len(response.entries) == 1


def test_a_response_has_a_bound() -> None:
    with pytest.raises(KafkaError) as raised:
        describe(more=1000)
    assert raised.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("version", [0, 1])
def test_an_error_has_no_entries(version: int) -> None:
    response = DESCRIBE.error_response(
        DescribeClientQuotasRequest(), ErrorCode.INVALID_REQUEST, "why"
    )
    decoded, _ = codec.decode(
        DescribeClientQuotasResponse, codec.encode(response, version), version
    )
    assert (decoded.error_code, decoded.error_message, decoded.entries) == (42, "why", None)


def test_each_entity_has_its_outcome() -> None:
    controller = Controller()
    response = alter(
        controller,
        AlterClientQuotasRequest(
            entries=[
                entry("producer_byte_rate", 5.0, user="alice"),
                entry("nosuch", 5.0, user="bob"),
                entry("producer_byte_rate", 5.0, user=None, client_id=None),
            ]
        ),
    )
    results = [
        (
            tuple((part.entity_type, part.entity_name) for part in each.entity),
            each.error_code,
            each.error_message,
        )
        for each in response.entries
    ]
    assert results == [
        ((("user", "alice"),), 0, None),
        ((("user", "bob"),), 42, "Invalid configuration key nosuch"),
        ((("client-id", None), ("user", None)), 0, None),
    ]


def test_a_removed_quota_has_no_value() -> None:
    controller = Controller()
    removal = entry("producer_byte_rate", 5.0, user="alice")
    removal.ops[0].remove = True
    alter(controller, AlterClientQuotasRequest(entries=[removal]))
    assert controller.seen[0].operations[0].value is None


def test_an_entity_that_is_repeated_costs_the_controller_two_alterations() -> None:
    controller = Controller()
    repeated = [entry("producer_byte_rate", 5.0, user="alice")] * 5000
    response = alter(controller, AlterClientQuotasRequest(entries=repeated))
    assert len(controller.seen) == 2
    assert [each.error_code for each in response.entries] == [ErrorCode.INVALID_REQUEST]


def test_the_loop_has_its_turn_while_much_is_read() -> None:
    many = [entry("producer_byte_rate", 5.0, user=f"u{number}") for number in range(5000)]
    one = Entry(
        entity=[Part(entity_type=f"t{number}", entity_name="x") for number in range(5000)],
        ops=[Operation(key=f"k{number}", value=1.0) for number in range(5000)],
    )
    for entries in (many, [one], [Entry()] * 5000):
        sliced = Sliced(controller=SimpleNamespace())
        context = RequestContext(ApiKey.ALTER_CLIENT_QUOTAS, 1)
        request = AlterClientQuotasRequest(entries=entries)
        outcome = ALTER.handle(sliced.services, context, request)
        assert isinstance(outcome, Deferred)
        assert not outcome.done


@pytest.mark.parametrize("version", [0, 1])
def test_an_alteration_given_up(version: int) -> None:
    request = AlterClientQuotasRequest(entries=[entry("producer_byte_rate", 5.0, user="alice")])
    response = ALTER.error_response(request, ErrorCode.NOT_CONTROLLER, "not now")
    decoded, _ = codec.decode(AlterClientQuotasResponse, codec.encode(response, version), version)
    (result,) = decoded.entries
    assert (result.error_code, result.error_message) == (41, "not now")
    assert [(part.entity_type, part.entity_name) for part in result.entity] == [("user", "alice")]
