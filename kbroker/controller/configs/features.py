"""UpdateFeatures decided (KIP-584, KIP-778): which finalized levels may change, and the records
that do it. All updates of a request count, or none.

A level is written by the controller as a FeatureLevelRecord; 0 means that the feature is off and no
longer finalized. What this release supports stands in `metadata/features`. kraft.version is written
by the quorum, as control records (KIP-853).

Deviation: Kafka upgrades kraft.version while it checks the features one by one, so an upgrade may
stand although the request is refused for another feature. Here the request counts as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import Final, Protocol

import msgspec

from kbroker.controller.result import ControllerResult
from kbroker.metadata.configs import MIN_INSYNC_REPLICAS, TopicSettings
from kbroker.metadata.features import KRAFT_VERSION, REGISTRATION_LEVEL, SUPPORTED_FEATURES
from kbroker.metadata.image import (
    BROKER_RESOURCE,
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    MetadataImage,
)
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.stored.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
)

ELR_SINCE: Final = 23
"""The metadata.version (4.0-IV1) that eligible leader replicas need."""

ONE_OUTCOME_SINCE: Final = 2

DISABLED: Final = (0, 0)
"""The levels of a feature that a node does not name."""


class UpgradeType(IntEnum):
    """The allowed direction of an update (Kafka: FeatureUpdate.UpgradeType)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class KRaftVersions(Protocol):
    """kraft.version at the leader of the metadata quorum."""

    @property
    def kraft_version(self) -> int:
        """The newest level in the log, committed or not."""
        ...

    def check_kraft_upgrade(self, level: int) -> None:
        """Whether kraft.version may become that level now; it may also stay what it is. Raises
        KafkaError(INVALID_UPDATE_VERSION).
        """
        ...


class FeatureSupport(msgspec.Struct, frozen=True):
    """What an update is checked against. node_id: of this controller. voters: the ids of
    controller.quorum.voters, none in a dynamic quorum.
    """

    image: MetadataImage
    node_id: int
    voters: Collection[int]
    quorum: KRaftVersions


def cluster_min_insync_record(settings: TopicSettings) -> ConfigRecord:
    """With ELR the cluster-wide min.insync.replicas is stored once, so that all controllers use the
    same value.
    """
    value = settings.static.explicit.get(MIN_INSYNC_REPLICAS, "1")
    return ConfigRecord(
        resource_type=BROKER_RESOURCE, resource_name="", name=MIN_INSYNC_REPLICAS, value=value
    )


def update_features(
    support: FeatureSupport,
    request: UpdateFeaturesRequest,
    *,
    api_version: int,
    min_insync: ConfigRecord,
) -> ControllerResult[UpdateFeaturesResponse]:
    """The records of a request, none for validate_only. min_insync: written down together with the
    first level of eligible.leader.replicas.version, unless there is such a config. Raises
    KafkaError(INVALID_UPDATE_VERSION) for the first update that may not be.
    """
    image = support.image
    wanted: dict[str, tuple[int, int]] = {}
    for update in request.feature_updates:
        wanted[update.feature] = (update.max_version_level, update.upgrade_type)
    proposed = {**image.features, **{name: level for name, (level, _) in wanted.items()}}
    current = {**image.features, KRAFT_VERSION: support.quorum.kraft_version}
    records: list[Message] = []
    kraft_version: int | None = None
    for name, (level, kind) in wanted.items():
        reason = _refusal(support, name, level, kind, current.get(name, 0), proposed)
        if reason is not None:
            raise _refused(ErrorCode.INVALID_UPDATE_VERSION, reason)
        if name == KRAFT_VERSION:
            if kind == UpgradeType.UPGRADE:
                _check_kraft_upgrade(support.quorum, level)
                kraft_version = level
                # the response waits for an offset behind the quorum's control records
                records.append(NoOpRecord())
            continue
        if name == ELIGIBLE_LEADER_REPLICAS and level > 0:
            records += _without_broker_min_insync(image)
        records.append(FeatureLevelRecord(name=name, feature_level=level))
        if name == ELIGIBLE_LEADER_REPLICAS and level > current.get(name, 0):
            cluster = image.configs.get((BROKER_RESOURCE, ""), {})
            if MIN_INSYNC_REPLICAS not in cluster:
                records.append(min_insync)
    response = _updated(request, api_version)
    if request.validate_only:
        return ControllerResult([], response)
    return ControllerResult(records, response, kraft_version=kraft_version)


def _without_broker_min_insync(image: MetadataImage) -> list[Message]:
    """With ELR all brokers have the cluster's min.insync.replicas: one with a lower value of its
    own would acknowledge records that the members of an ELR do not have (Kafka:
    maybeGenerateElrSafetyRecords).
    """
    return [
        ConfigRecord(resource_type=kind, resource_name=name, name=MIN_INSYNC_REPLICAS, value=None)
        for (kind, name), values in image.configs.items()
        if kind == BROKER_RESOURCE and name and MIN_INSYNC_REPLICAS in values
    ]


def _check_kraft_upgrade(quorum: KRaftVersions, level: int) -> None:
    try:
        quorum.check_kraft_upgrade(level)
    except KafkaError as error:
        raise _refused(error.code, error.message) from None


def _refused(code: ErrorCode, reason: str) -> KafkaError:
    return KafkaError(
        code,
        "The update failed for all features since the following feature had an error: " + reason,
    )


def _updated(request: UpdateFeaturesRequest, api_version: int) -> UpdateFeaturesResponse:
    """The response when all is well: up to v1 each update has its line."""
    if api_version >= ONE_OUTCOME_SINCE:
        return UpdateFeaturesResponse(error_message=None)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=update.feature, error_message="NONE"
            )
            for update in request.feature_updates
        ],
    )


def _refusal(
    support: FeatureSupport,
    name: str,
    level: int,
    kind: int,
    current: int,
    proposed: Mapping[str, int],
) -> str | None:
    """Why this level may not be, in Kafka's words and the order of its checks; None if it may."""
    reason = _unsuitable(support, name, level, kind, current)
    if reason is None and name == METADATA_VERSION and level < current:
        # From 3.3-IV3 on every version has changed what is written.
        unsafe = kind == UpgradeType.UNSAFE_DOWNGRADE
        return f"Unsupported metadata.version downgrade from {current} to {level}. " + (
            "Unsafe metadata downgrade is not supported in this version."
            if unsafe
            else "Refusing to perform the requested downgrade because it might delete metadata "
            "information."
        )
    if reason is None and name == KRAFT_VERSION and level < current:
        reason = "Can't downgrade the version of this feature."
    if reason is None and name not in SUPPORTED_FEATURES:
        reason = f"Feature {name} not found."
    needed = proposed.get(METADATA_VERSION, 0)
    if reason is None and name == ELIGIBLE_LEADER_REPLICAS and level > 0 and needed < ELR_SINCE:
        reason = (
            f"{name} could not be set to {level} because it depends on "
            f"{METADATA_VERSION} level {ELR_SINCE}"
        )
    return (
        None if reason is None else f"Invalid update version {level} for feature {name}. {reason}"
    )


def _unsuitable(
    support: FeatureSupport, name: str, level: int, kind: int, current: int
) -> str | None:
    if kind not in set(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    reason = next(_unsupported(support, name, level), None)
    if reason is not None:
        return reason
    if level < current and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > current and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _unsupported(support: FeatureSupport, name: str, level: int) -> Iterator[str]:
    """The nodes of the cluster that do not support this level, or may not: this controller, the
    brokers, the other controllers.
    """
    image, node_id = support.image, support.node_id
    levels = {f"Local controller {node_id}": SUPPORTED_FEATURES.get(name, DISABLED)}
    for number, broker in sorted(image.brokers.items()):
        levels[f"Broker {number}"] = broker.features.get(name, DISABLED)
    knows_controllers = image.metadata_version >= REGISTRATION_LEVEL
    if knows_controllers:
        for number, controller in sorted(image.controllers.items()):
            if number != node_id:
                levels[f"Controller {number}"] = controller.features.get(name, DISABLED)
    for node, (low, high) in levels.items():
        if not low <= level <= high:
            supported = str(low) if low == high else f"{low}-{high}"
            yield (
                f"{node} only supports versions {supported}"
                if high
                else f"{node} does not support this feature."
            )
    for number in sorted(support.voters) if knows_controllers else ():
        if number != node_id and number not in image.controllers:
            yield (f"controller {number} has not registered, and may not support this feature")
