"""The finalized features clients are told: those of the image, and the quorum's kraft.version."""

from __future__ import annotations

import pytest

from kbroker.broker.metadata_cache import MetadataCache
from kbroker.metadata.features import KRAFT_VERSION
from kbroker.metadata.image import MetadataImage


def test_an_empty_image_of_the_cluster_comes_first() -> None:
    cache = MetadataCache("abc", lambda: 0)
    assert cache.image == MetadataImage(cluster_id="abc")
    assert cache.finalized_features() == {}


@pytest.mark.parametrize(
    ("kraft_version", "expected"),
    [
        pytest.param(0, {"group.version": 1}, id="static quorum: not finalized"),
        pytest.param(1, {"group.version": 1, KRAFT_VERSION: 1}, id="dynamic quorum"),
    ],
)
def test_kraft_version_is_added(kraft_version: int, expected: dict[str, int]) -> None:
    cache = MetadataCache("abc", lambda: kraft_version)
    cache.image = MetadataImage(features={"group.version": 1})
    assert cache.finalized_features() == expected
    assert cache.image.features == {"group.version": 1}, "the image is not changed"


def test_kraft_version_is_asked_for_each_time() -> None:
    versions = [1, 0]
    cache = MetadataCache("abc", lambda: versions.pop())
    assert [KRAFT_VERSION in cache.finalized_features() for _ in range(2)] == [False, True]
