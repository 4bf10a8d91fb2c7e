"""The filter of DescribeClientQuotas, and the rules of quota entities."""

from __future__ import annotations

import pytest

from kbroker.metadata.client_quotas import (
    CLIENT_ID,
    IP,
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    USER,
    FilterComponent,
    QuotaFilter,
    bounds_of,
)
from kbroker.metadata.image import QuotaEntity
from kbroker.protocol.errors import ErrorCode, KafkaError

ALICE = ((USER, "alice"),)
DEFAULT_USER = ((USER, None),)
ALICE_APP = ((CLIENT_ID, "app"), (USER, "alice"))
ALICE_DEFAULT = ((CLIENT_ID, None), (USER, "alice"))
APP = ((CLIENT_ID, "app"),)
LOCAL = ((IP, "127.0.0.1"),)
EVERY: tuple[QuotaEntity, ...] = (ALICE, DEFAULT_USER, ALICE_APP, ALICE_DEFAULT, APP, LOCAL)

EXACT_ALICE = FilterComponent(USER, MATCH_EXACT, "alice")
ANY_USER = FilterComponent(USER, MATCH_SPECIFIED, None)
ANY_CLIENT = FilterComponent(CLIENT_ID, MATCH_SPECIFIED, None)


def matches(*components: FilterComponent, strict: bool = False) -> list[QuotaEntity]:
    wanted = QuotaFilter(strict=strict)
    for component in components:
        wanted.add(component)
    wanted.check()
    return [entity for entity in EVERY if wanted.matches(entity)]


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        pytest.param([], False, list(EVERY), id="everything"),
        pytest.param([], True, [], id="strict and empty"),
        pytest.param([EXACT_ALICE], False, [ALICE, ALICE_APP, ALICE_DEFAULT], id="exact"),
        pytest.param([EXACT_ALICE], True, [ALICE], id="exact, strict"),
        pytest.param(
            [FilterComponent(USER, MATCH_DEFAULT, None)], False, [DEFAULT_USER], id="default"
        ),
        pytest.param(
            [ANY_USER], False, [ALICE, DEFAULT_USER, ALICE_APP, ALICE_DEFAULT], id="specified"
        ),
        pytest.param([ANY_USER, ANY_CLIENT], True, [ALICE_APP, ALICE_DEFAULT], id="pairs"),
        pytest.param([ANY_CLIENT], True, [APP], id="client ids alone"),
        pytest.param([FilterComponent(IP, MATCH_SPECIFIED, None)], False, [LOCAL], id="ips"),
    ],
)
def test_what_a_filter_finds(
    components: list[FilterComponent], strict: bool, expected: list[QuotaEntity]
) -> None:
    assert matches(*components, strict=strict) == expected


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([FilterComponent("", 0, "x")], "Invalid empty entity type."),
        ([ANY_USER, EXACT_ALICE], "Entity type user cannot appear more than once in the filter."),
        (
            [FilterComponent(USER, MATCH_EXACT, None)],
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [FilterComponent(USER, MATCH_DEFAULT, "x")],
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [FilterComponent(USER, MATCH_SPECIFIED, "x")],
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([FilterComponent(USER, 3, None)], "Unknown match type 3"),
        (
            [ANY_USER, FilterComponent(IP, MATCH_SPECIFIED, None)],
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        ),
    ],
)
def test_an_invalid_filter_is_refused(components: list[FilterComponent], message: str) -> None:
    with pytest.raises(KafkaError) as raised:
        matches(*components)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert raised.value.message == message


def test_an_unknown_type_is_unsupported() -> None:
    with pytest.raises(KafkaError) as raised:
        matches(FilterComponent("group", MATCH_SPECIFIED, None))
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert raised.value.message == "Unsupported entity type group"


def test_bounds_are_those_of_one_key() -> None:
    quotas = {ALICE: {"producer_byte_rate": 5.0}, APP: {"consumer_byte_rate": 6.0}}
    assert bounds_of(quotas, "producer_byte_rate") == {ALICE: 5.0, APP: None}
