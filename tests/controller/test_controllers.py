"""ControllerRegistration: what is registered, and what is refused."""

from __future__ import annotations

import pytest

from kbroker.controller.controllers import register_controller
from kbroker.controller.result import MAX_REGISTERED_ITEMS
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.features import REGISTRATION_LEVEL
from kbroker.metadata.image import ControllerRegistration, Endpoint, MetadataImage
from kbroker.metadata.records import decode_versioned, encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import ControllerRegistrationRequest

Listener = ControllerRegistrationRequest.Listener
Feature = ControllerRegistrationRequest.Feature
INCARNATION = bytes(range(16))


def image(level: int = 30) -> MetadataImage:
    return MetadataImage(cluster_id="c", features={"metadata.version": level})


def request(**fields: object) -> ControllerRegistrationRequest:
    values: dict[str, object] = {
        "controller_id": 3,
        "incarnation_id": INCARNATION,
        "listeners": [Listener(name="CONTROLLER", host="a", port=9093, security_protocol=0)],
        "features": [
            Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)
        ],
    }
    return ControllerRegistrationRequest(**{**values, **fields})  # type: ignore[arg-type]  # fields of the request


def replayed(before: MetadataImage, asked: ControllerRegistrationRequest) -> MetadataImage:
    """The image after the records of the decision, as they stand in the log."""
    delta = MetadataDelta(before)
    for record in register_controller(before, asked).records:
        read, version = decode_versioned(encode_record(record, before.metadata_version))
        assert version == 0
        delta.replay(read)
    return delta.apply(offset=0, epoch=1)


def test_a_registration_is_in_the_image_and_in_snapshots() -> None:
    after = replayed(image(), request())
    assert after.controllers == {
        3: ControllerRegistration(
            id=3,
            incarnation_id=INCARNATION,
            endpoints={"CONTROLLER": Endpoint("CONTROLLER", "a", 9093)},
            features={"metadata.version": (7, 30)},
        )
    }
    delta = MetadataDelta(MetadataImage(cluster_id="c"))
    for record in image_records(after):
        delta.replay(record)
    assert delta.apply(offset=0, epoch=1).controllers == after.controllers


def test_a_new_incarnation_replaces_the_old_one() -> None:
    before = replayed(image(), request())
    moved = [Listener(name="CONTROLLER", host="b", port=1, security_protocol=0)]
    after = replayed(before, request(incarnation_id=bytes(16), listeners=moved))
    assert list(after.controllers) == [3]
    assert after.controllers[3].endpoints["CONTROLLER"].host == "b"
    assert after.controllers[3].incarnation_id == bytes(16)


def test_the_zookeeper_flag_of_old_controllers_is_not_kept() -> None:
    after = replayed(image(), request(zk_migration_ready=True))
    assert not after.controllers[3].zk_migration_ready


@pytest.mark.parametrize(
    ("level", "listeners", "code"),
    [
        (REGISTRATION_LEVEL - 1, [], ErrorCode.UNSUPPORTED_VERSION),
        (
            REGISTRATION_LEVEL,
            [Listener(name="X", host="a", port=1, security_protocol=4)],
            ErrorCode.INVALID_REGISTRATION,
        ),
        (
            REGISTRATION_LEVEL,
            [Listener(name="X", host="a", port=1)] * (MAX_REGISTERED_ITEMS + 1),
            ErrorCode.INVALID_REGISTRATION,
        ),
    ],
)
def test_refused(level: int, listeners: list[Listener], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        register_controller(image(level), request(listeners=listeners))
    assert caught.value.code is code
