"""BrokerRegistration (KIP-584, KIP-631, KIP-858, KIP-966): which broker may join, and what remains
to be done for its previous incarnation.

A broker registers fenced, with its epoch. The epoch of its previous registration distinguishes a
clean restart from an unclean one: after an unclean stop the broker may have lost records that were
not synced, so it leaves every ISR and ELR first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.controller.brokers.brokers import clean_up_incarnation
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_change import DIRECTORY_ASSIGNMENT_LEVEL
from kbroker.controller.result import (
    ControllerResult,
    DecisionSteps,
    check_registration_size,
)
from kbroker.metadata.features import KRAFT_VERSION
from kbroker.metadata.image import METADATA_VERSION, MetadataImage
from kbroker.model import Uuid, is_reserved_uuid, uuid_to_string
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import BrokerRegistrationRequest
from kbroker.protocol.messages.stored.metadata_records import RegisterBrokerRecord

Feature = BrokerRegistrationRequest.Feature


def register_broker(
    context: DecisionContext,
    request: BrokerRegistrationRequest,
    *,
    next_offset: Callable[[], int],
    kraft_version: int,
    has_valid_session: bool,
) -> DecisionSteps[int]:
    """The response is the broker epoch: next_offset after the last pause, the offset of the first
    record, or the epoch it has if the same incarnation registers again. kraft_version: the
    finalized one. has_valid_session: whether the registered incarnation was heard of within its
    session timeout. Raises KafkaError.

    The record of the registration is the last one. If the batch is cut, the broker registers again
    and the clean-up is repeated, so the records need not be atomic.
    """
    image = context.image
    old = image.brokers.get(request.broker_id)
    is_new_incarnation = old is None or old.incarnation_id != request.incarnation_id
    check_registration_size(request.listeners, request.features, request.log_dirs)
    _check(image, request, may_replace=not (is_new_incarnation and has_valid_session))
    finalized = {**image.features, METADATA_VERSION: image.metadata_version}
    _check_features({**finalized, KRAFT_VERSION: kraft_version}, request.features)
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in request.listeners
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
        rack=request.rack,
        fenced=True,
    )
    if image.metadata_version >= DIRECTORY_ASSIGNMENT_LEVEL:
        record.log_dirs = list(request.log_dirs)
    records: list[Message] = []
    if old is None or is_new_incarnation:
        clean = old is not None and old.epoch == request.previous_broker_epoch
        records += yield from clean_up_incarnation(context, request.broker_id, clean=clean)
        record.broker_epoch = next_offset()
    else:
        record.broker_epoch = old.epoch
        record.fenced, record.in_controlled_shutdown = old.fenced, old.in_controlled_shutdown
    return ControllerResult([*records, record], record.broker_epoch, atomic=False)


def _check(image: MetadataImage, request: BrokerRegistrationRequest, *, may_replace: bool) -> None:
    """Raises KafkaError for the first reason not to register the broker, in Kafka's order."""
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if not may_replace:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently "
            "restarted this should self-resolve once the heartbeat manager expires the broker's "
            "session.",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        )
    if image.metadata_version >= DIRECTORY_ASSIGNMENT_LEVEL:
        _check_directories(image, request.broker_id, request.log_dirs)
    if not request.listeners:
        raise _invalid(f"Broker {request.broker_id} did not give any endpoint to reach it at.")


def _check_directories(image: MetadataImage, broker_id: int, log_dirs: Sequence[Uuid]) -> None:
    if not log_dirs:
        raise _invalid("No directories specified in request")
    if any(is_reserved_uuid(each) for each in log_dirs):
        raise _invalid("Reserved directory ID in request")
    if len(set(log_dirs)) < len(log_dirs):
        raise _invalid("Duplicate directory ID in request")
    for other_id, other in sorted(image.brokers.items()):
        taken = frozenset(other.log_dirs if other_id != broker_id else ())
        for directory in log_dirs:
            if directory in taken:
                raise _invalid(
                    f"Broker {other_id} is already registered with directory "
                    f"{uuid_to_string(directory)}"
                )


def _check_features(finalized: Mapping[str, int], features: Sequence[Feature]) -> None:
    """A broker must support every finalized level; a feature that it does not name, it does not
    have.
    """
    for feature in features:
        _check_range(feature, finalized.get(feature.name, 0))
    named = {feature.name for feature in features}
    if METADATA_VERSION not in named:
        raise _invalid(f"Request features do not contain '{METADATA_VERSION}'")
    for name, level in sorted(finalized.items()):
        if name not in named:
            _check_range(Feature(name=name), level)


def _check_range(feature: Feature, finalized: int) -> None:
    low, high = feature.min_supported_version, feature.max_supported_version
    if not low <= finalized <= high:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version "
            f"{finalized} of {feature.name}. The broker wants a version between {low} and {high}, "
            "inclusive.",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGISTRATION, message)
