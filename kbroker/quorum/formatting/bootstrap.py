"""`bootstrap.checkpoint`: the metadata records a new cluster begins with, framed, and the feature
levels that `kbroker format` puts into them (Kafka's StorageTool). `metadata` interprets the
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.model import StartupError
from kbroker.protocol.codecs import codec
from kbroker.protocol.messages.stored.metadata_records import FeatureLevelRecord

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"

MIN_METADATA_LEVEL: Final = 7
METADATA_VERSIONS: Final = (
    *("3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1"),
    "4.3-IV0",
)
"""Names of the levels from MIN_METADATA_LEVEL up."""

LATEST_METADATA_LEVEL: Final = MIN_METADATA_LEVEL + len(METADATA_VERSIONS) - 1

FEATURE_LEVELS: Final[Mapping[str, tuple[int, ...]]] = {
    KRAFT_VERSION: (21,),
    "transaction.version": (24, 24),
    "group.version": (22,),
    "eligible.leader.replicas.version": (26,),
    "share.version": (28,),
    "streams.version": (29,),
}
"""For each level of a feature, from 1 on, the metadata.version from which it is the default."""

NEEDED_METADATA_LEVEL: Final[Mapping[str, int]] = {"eligible.leader.replicas.version": 23}
"""The lowest metadata.version at which a feature can be above level 0."""


def metadata_version_name(level: int) -> str:
    """`4.3-IV0` for 30."""
    return METADATA_VERSIONS[level - MIN_METADATA_LEVEL]


def release_level(release: str) -> int:
    """The metadata.version level of `4.3`, `4.3.1` or `4.3-IV0`. Raises StartupError."""
    key = ".".join(release.split(".")[:2])
    for level in range(LATEST_METADATA_LEVEL, MIN_METADATA_LEVEL - 1, -1):
        if key in (metadata_version_name(level), metadata_version_name(level).partition("-")[0]):
            return level
    raise StartupError(
        f"Unknown metadata.version '{release}'. Supported metadata.version are: "
        + ", ".join(METADATA_VERSIONS)
    )


def parse_features(texts: Iterable[str]) -> dict[str, int]:
    """`feature=level` to levels by name. Raises StartupError."""
    levels: dict[str, int] = {}
    for text in texts:
        name, equals, level = (part.strip() for part in text.partition("="))
        if not equals:
            raise StartupError(f"Can't parse feature=level string {text}: equals sign not found.")
        if not (level.isascii() and level.removeprefix("-").isdigit() and abs(int(level)) < 32768):
            raise StartupError(
                f"Can't parse feature=level string {text}: unable to parse {level} as a short."
            )
        levels[name] = int(level)
    return levels


def initial_levels(
    release: str | None = None, asked: Mapping[str, int] | None = None, *, is_dynamic: bool = True
) -> dict[str, int]:
    """The level of every feature of a new cluster, metadata.version first, then by name;
    kraft.version is among them. release: None for the newest. asked: requested levels that differ
    from the release's defaults. is_dynamic: the voters are in the log (KIP-853). Raises
    StartupError.
    """
    asked = asked or {}
    level = LATEST_METADATA_LEVEL if release is None else release_level(release)
    if METADATA_VERSION in asked:
        if release is not None:
            raise StartupError(
                f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid "
                "ambiguity."
            )
        level = asked[METADATA_VERSION]
        if not MIN_METADATA_LEVEL <= level <= LATEST_METADATA_LEVEL:
            raise StartupError(
                f"No MetadataVersion with feature level {level}. Valid feature levels are from "
                f"{MIN_METADATA_LEVEL} to {LATEST_METADATA_LEVEL}"
            )
    levels = {METADATA_VERSION: level}
    for name in sorted(asked):
        if name != METADATA_VERSION and name not in FEATURE_LEVELS:
            known = ", ".join(sorted(FEATURE_LEVELS))
            raise StartupError(f"Unsupported feature: {name}. Supported features are: {known}")
    for name, since in sorted(FEATURE_LEVELS.items()):
        default = sum(first <= level for first in since)
        levels[name] = asked.get(name, int(is_dynamic) if name == KRAFT_VERSION else default)
        if not 0 <= levels[name] <= len(since):
            raise StartupError(f"No feature:{name} with feature level {levels[name]}")
        needed = NEEDED_METADATA_LEVEL.get(name, 0)
        if levels[name] and level < needed:
            raise StartupError(
                f"{name} could not be set to {levels[name]} because it depends on "
                f"{METADATA_VERSION} level {needed}"
            )
    _check_kraft_version(levels[KRAFT_VERSION], is_dynamic=is_dynamic)
    return levels


def _check_kraft_version(level: int, *, is_dynamic: bool) -> None:
    flags = "--standalone, --initial-controllers, or --no-initial-controllers"
    if level == 0 and is_dynamic:
        raise StartupError(
            f"Cannot set {KRAFT_VERSION} to 0 if controller.quorum.voters is empty and one of the "
            f"flags {flags} is used. For dynamic controllers support, try removing the --feature "
            f"flag for {KRAFT_VERSION}."
        )
    if level > 0 and not is_dynamic:
        raise StartupError(
            f"Cannot set {KRAFT_VERSION} to {level} unless controller.quorum.voters is empty and "
            f"one of the flags {flags} is used. For dynamic controllers support, try using one of "
            f"{flags} and removing controller.quorum.voters."
        )


DEFAULT_LEVELS: Final[Mapping[str, int]] = {
    name: level for name, level in initial_levels().items() if name != KRAFT_VERSION
}
"""Features of a new cluster in the order Kafka writes them."""


def bootstrap_records(levels: Mapping[str, int]) -> list[bytes]:
    """One FeatureLevelRecord for each feature above 0, framed (frame version, type, version, body).
    kraft.version has none: the quorum owns it.
    """
    frame = bytes((1, FeatureLevelRecord.API_KEY, 0))
    return [
        frame + codec.encode(FeatureLevelRecord(name=name, feature_level=level), 0)
        for name, level in levels.items()
        if level > 0 and name != KRAFT_VERSION
    ]


def default_bootstrap_records() -> list[bytes]:
    """Those of DEFAULT_LEVELS."""
    return bootstrap_records(DEFAULT_LEVELS)
