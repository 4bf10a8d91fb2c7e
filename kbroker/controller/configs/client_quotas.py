"""AlterClientQuotas (KIP-546): what an alteration makes of an entity's quotas, and its records.

Each entity has its own outcome; the words of the messages are Kafka's. As in Kafka the first
alteration of an entity that is named again counts, although its outcome is the error of the
repetition. Source: ClientQuotaControlManager of Kafka 4.3.1. Deviation: an ip entity is an address,
not a host name, since the controller resolves no names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from kbroker.controller.result import ControllerResult, DecisionSteps
from kbroker.metadata.client_quotas import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    IP_KEYS,
    USER,
    USER_AND_CLIENT_KEYS,
)
from kbroker.metadata.image import MetadataImage, QuotaEntity
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClientQuotaRecord
from kbroker.settings.tables.keys import ConfigType

OPERATIONS_PER_STEP: Final = 128
"""Operations, and entities, that are decided on in one step."""

MAX_INTEGERS: Final[Mapping[ConfigType, tuple[float, str]]] = {
    ConfigType.SHORT: (float(2**15 - 1), "a SHORT"),
    ConfigType.INT: (float(2**31 - 1), "an INT"),
    ConfigType.LONG: (float(2**63 - 1), "a LONG"),
}
"""As doubles, in which quotas are compared."""


class QuotaOperation(NamedTuple):
    """One quota of an alteration. value: None removes the quota."""

    key: str
    value: float | None


class QuotaAlteration(NamedTuple):
    """All that a request says of one entity. entity: its type and name pairs, each type once; a
    name of None is the default entity.
    """

    entity: QuotaEntity
    operations: Sequence[QuotaOperation]


class QuotaOutcome(NamedTuple):
    """The outcome for one entity. message: None on success."""

    error: ErrorCode
    message: str | None


QUOTA_ALTERED: Final = QuotaOutcome(ErrorCode.NONE, None)


def alter_client_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool
) -> DecisionSteps[dict[QuotaEntity, QuotaOutcome]]:
    """The outcome of each entity, in the order in which they are named first. Steps of a decision.

    alterations: their entities as `quota_entity` makes them.
    """
    records: list[ClientQuotaRecord] = []
    outcomes: dict[QuotaEntity, QuotaOutcome] = {}
    left = OPERATIONS_PER_STEP
    for entity, operations in alterations:
        standing = image.client_quotas.get(entity, {})
        named: set[str] = set()
        effective: dict[str, float | None] = {}
        for key, value in operations:
            left -= 1
            if left <= 0:
                left = OPERATIONS_PER_STEP
                yield
            named.add(key)
            if value is not None or key in standing:
                effective[key] = value
        left -= 1
        if left <= 0:
            left = OPERATIONS_PER_STEP
            yield
        if entity in outcomes or len(named) < len(operations):
            message = f"Ignoring duplicate entity {_shown(entity)}"
            outcomes[entity] = QuotaOutcome(ErrorCode.INVALID_REQUEST, message)
            continue
        try:
            records += _changes(standing, entity, effective)
        except KafkaError as error:
            outcomes[entity] = QuotaOutcome(error.code, error.message)
        else:
            outcomes[entity] = QUOTA_ALTERED
    return ControllerResult([] if validate_only else records, outcomes)


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """An entity as the image has it. parts: the name by type, None for the default entity. Where
    they are too many for a valid entity, they keep their order.
    """
    if len(parts) > len(ENTITY_TYPES):
        return tuple(parts.items())
    return tuple(sorted(parts.items()))


def _changes(
    standing: Mapping[str, float], entity: QuotaEntity, values: Mapping[str, float | None]
) -> list[ClientQuotaRecord]:
    """The records of one entity. Raises KafkaError(INVALID_REQUEST)."""
    _check_parts(entity)
    keys = _keys_of(entity)
    for key, value in values.items():
        if value is not None:
            _check_value(keys, key, value)
    return [
        ClientQuotaRecord(
            entity=[
                ClientQuotaRecord.EntityData(entity_type=entity_type, entity_name=name)
                for entity_type, name in entity
            ],
            key=key,
            value=0.0 if value is None else value,
            remove=value is None,
        )
        for key, value in values.items()
        if value != standing.get(key)
    ]


def _check_parts(entity: QuotaEntity) -> None:
    if not entity:
        raise _refused("Invalid empty client quota entity")
    for entity_type, name in entity:
        if entity_type not in ENTITY_TYPES:
            raise _refused(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _refused(f"Empty {entity_type} not supported")


def _keys_of(entity: QuotaEntity) -> Mapping[str, ConfigType]:
    """The quotas that entities of these types may have. Raises KafkaError(INVALID_REQUEST)."""
    parts = dict(entity)
    if IP not in parts:
        return USER_AND_CLIENT_KEYS
    if USER in parts or CLIENT_ID in parts:
        raise _refused(
            "Invalid quota entity combination, IP entity should"
            "not be combined with User or ClientId"
        )
    name = parts[IP]
    if name is not None and not _is_address(name):
        raise _refused(f"{name} is not a valid IP or resolvable host.")
    return IP_KEYS


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _check_value(keys: Mapping[str, ConfigType], key: str, value: float) -> None:
    key_type = keys.get(key)
    if key_type is None:
        raise _refused(f"Invalid configuration key {key}")
    if value <= 0.0:
        raise _refused(f"Quota {key} must be greater than 0")
    if key_type not in MAX_INTEGERS:
        return
    largest, name = MAX_INTEGERS[key_type]
    if value > largest:
        raise _refused(f"Proposed value for {key} is too large for {name}.")
    if abs(value % 1.0) > 1e-6:
        raise _refused(f"{key} cannot be a fractional value.")


def _shown(entity: QuotaEntity) -> str:
    """As Kafka's ClientQuotaEntity shows itself."""
    parts = ", ".join(
        f"{entity_type}={'null' if name is None else name}" for entity_type, name in entity
    )
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
