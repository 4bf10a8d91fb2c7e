"""Client quotas in the metadata (KIP-546): the types of entities, the keys and their types, and the
filter of DescribeClientQuotas.

`controller/configs/client_quotas` decides alterations; `server/quotas` selects and enforces the
quota of a client. Source: QuotaConfig and ClientQuotasImage of Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.metadata.image import QuotaEntity
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.tables.keys import ConfigType

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

USER_AND_CLIENT_KEYS: Final[Mapping[str, ConfigType]] = {
    PRODUCER_BYTE_RATE: ConfigType.LONG,
    CONSUMER_BYTE_RATE: ConfigType.LONG,
    REQUEST_PERCENTAGE: ConfigType.DOUBLE,
    CONTROLLER_MUTATION_RATE: ConfigType.DOUBLE,
}
"""Quotas of users, client ids, and pairs of user and client id."""

IP_KEYS: Final[Mapping[str, ConfigType]] = {CONNECTION_CREATION_RATE: ConfigType.INT}

MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_SPECIFIED: Final = 2


class FilterComponent(NamedTuple):
    """A condition on the part of an entity with this type. match: only with MATCH_EXACT."""

    entity_type: str
    match_type: int
    match: str | None


class QuotaFilter:
    """The filter of a DescribeClientQuotas request: all components must match. strict: the entity
    must not have a part of another type. Components are added one by one, since a request may have
    very many; `add` raises KafkaError, and so does `check` after the last one.
    """

    __slots__ = ("_exact", "_specified", "_strict")

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._exact: dict[str, str | None] = {}
        self._specified: set[str] = set()

    def add(self, component: FilterComponent) -> None:
        """Raises KafkaError(INVALID_REQUEST or UNSUPPORTED_VERSION)."""
        entity_type, match_type, match = component
        if not entity_type:
            raise _invalid("Invalid empty entity type.")
        if entity_type in self._exact or entity_type in self._specified:
            raise _invalid(f"Entity type {entity_type} cannot appear more than once in the filter.")
        if entity_type not in ENTITY_TYPES:
            message = f"Unsupported entity type {entity_type}"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        if match_type == MATCH_EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._exact[entity_type] = match
        elif match_type == MATCH_DEFAULT:
            if match is not None:
                raise _unexpected_match("MATCH_TYPE_DEFAULT")
            self._exact[entity_type] = None
        elif match_type == MATCH_SPECIFIED:
            if match is not None:
                raise _unexpected_match("MATCH_TYPE_SPECIFIED")
            self._specified.add(entity_type)
        else:
            raise _invalid(f"Unknown match type {match_type}")

    def check(self) -> None:
        """Raises KafkaError(INVALID_REQUEST) for a combination of types that no entity has."""
        types = self._exact.keys() | self._specified
        if IP in types and len(types) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component."
            )

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the entity has every part of the filter."""
        if self._strict and len(entity) != len(self._exact) + len(self._specified):
            return False
        parts = dict(entity)
        return all(
            entity_type in parts and parts[entity_type] == name
            for entity_type, name in self._exact.items()
        ) and all(entity_type in parts for entity_type in self._specified)


def bounds_of(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str
) -> dict[QuotaEntity, float | None]:
    """The quota of that key for each entity, None if the entity has none. quotas: as in the
    image.
    """
    return {entity: values.get(key) for entity, values in quotas.items()}


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _unexpected_match(match_type: str) -> KafkaError:
    return _invalid(f"Request specified {match_type}, but also specified a match string.")
