"""ControllerRegistration (KIP-919): which controllers there are, where they are reached, and which
features they support.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.result import ControllerResult, check_registration_size
from kbroker.metadata.features import REGISTRATION_LEVEL
from kbroker.metadata.image import MetadataImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import ControllerRegistrationRequest
from kbroker.protocol.messages.stored.metadata_records import RegisterControllerRecord

SECURITY_PROTOCOLS: Final = range(4)


def register_controller(
    image: MetadataImage, request: ControllerRegistrationRequest
) -> ControllerResult[None]:
    """A controller as it says it is; a new incarnation replaces the old one. Raises KafkaError.

    Deviation: Kafka answers UNKNOWN_SERVER_ERROR to a security protocol that does not exist.
    """
    if image.metadata_version < REGISTRATION_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations.",
        )
    check_registration_size(request.listeners, request.features)
    for each in request.listeners:
        if each.security_protocol not in SECURITY_PROTOCOLS:
            message = f"Unknown security protocol {each.security_protocol} in listener {each.name}"
            raise KafkaError(ErrorCode.INVALID_REGISTRATION, message)
    listeners = {each.name: each for each in request.listeners}
    features = {each.name: each for each in request.features}
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            RegisterControllerRecord.ControllerEndpoint(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in listeners.values()
        ],
        features=[
            RegisterControllerRecord.ControllerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in features.values()
        ],
    )
    return ControllerResult([record], None)
