"""UpdateFeatures decided (KIP-584, KIP-778): which finalized levels may change, and the records
that do it. All updates of a request count, or none.

A level is written by the controller as a FeatureLevelRecord; 0 means that the feature is off and no
longer finalized. What is supported stands in `features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from kbroker.metadata.configs import MIN_INSYNC_REPLICAS
from kbroker.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from kbroker.metadata.image import (
    BROKER_RESOURCE,
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    MetadataImage,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from kbroker.protocol.schema import Message

ELR_SINCE: Final = 23
"""The metadata.version (4.0-IV1) that eligible leader replicas need."""

ONE_OUTCOME_SINCE: Final = 2


class UpgradeType(IntEnum):
    """The allowed direction of an update (Kafka: FeatureUpdate.UpgradeType)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage,
    request: UpdateFeaturesRequest,
    *,
    node_id: int,
    kraft_version: int,
    min_insync: ConfigRecord,
) -> list[Message]:
    """The records of a request, none for validate_only. min_insync: written down together with the
    first level of eligible.leader.replicas.version, unless there is such a config. Raises
    KafkaError(INVALID_UPDATE_VERSION) for the first update that may not be.
    """
    wanted: dict[str, tuple[int, int]] = {}
    for update in request.feature_updates:
        wanted[update.feature] = (update.max_version_level, update.upgrade_type)
    proposed = {**image.features, **{name: level for name, (level, _) in wanted.items()}}
    current = {**image.features, KRAFT_VERSION: kraft_version}
    records: list[Message] = []
    for name, (level, kind) in wanted.items():
        reason = _refusal(name, level, kind, current.get(name, 0), proposed, node_id)
        if reason is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                "The update failed for all features since the following feature had an error: "
                + reason,
            )
        if name == KRAFT_VERSION:  # the same level: it stands in the quorum's control records
            continue
        records.append(FeatureLevelRecord(name=name, feature_level=level))
        if name == ELIGIBLE_LEADER_REPLICAS and level > current.get(name, 0):
            cluster = image.configs.get((BROKER_RESOURCE, ""), {})
            if MIN_INSYNC_REPLICAS not in cluster:
                records.append(min_insync)
    return [] if request.validate_only else records


def updated(request: UpdateFeaturesRequest, api_version: int) -> UpdateFeaturesResponse:
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
    name: str, level: int, kind: int, current: int, proposed: Mapping[str, int], node_id: int
) -> str | None:
    """Why this level may not be, in Kafka's words; None if it may."""
    reason = _unsuitable(name, level, kind, current, node_id)
    if reason is not None:
        return f"Invalid update version {level} for feature {name}. {reason}"
    if name == METADATA_VERSION and level < current:
        # From 3.3-IV3 on every version has changed what is written.
        unsafe = kind == UpgradeType.UNSAFE_DOWNGRADE
        return f"Unsupported metadata.version downgrade from {current} to {level}. " + (
            "Unsafe metadata downgrade is not supported in this version."
            if unsafe
            else "Refusing to perform the requested downgrade because it might delete metadata "
            "information."
        )
    needed = proposed.get(METADATA_VERSION, 0)
    if name == ELIGIBLE_LEADER_REPLICAS and level > 0 and needed < ELR_SINCE:
        return (
            f"Invalid update version {level} for feature {name}. "
            f"{name} could not be set to {level} because it depends on "
            f"{METADATA_VERSION} level {ELR_SINCE}"
        )
    return None


def _unsuitable(name: str, level: int, kind: int, current: int, node_id: int) -> str | None:
    if kind not in set(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        return f"Local controller {node_id} does not support this feature."
    low, high = supported
    if not low <= level <= high:
        return f"Local controller {node_id} only supports versions {low}-{high}"
    if level < current and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > current and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if name == KRAFT_VERSION and level != current:
        return "It cannot be changed while the quorum runs."
    return None
