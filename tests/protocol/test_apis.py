from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.apis import (
    APIS,
    ApiKey,
    api_info,
    latest_version_unstable,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
    valid_versions,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

PATH = Path(__file__).parents[1] / "data" / "kafka" / "apis.json"
ALL: list[dict[str, Any]] = json.loads(PATH.read_text())["apis"]
SERVED = [fact for fact in ALL if fact["hasValidVersion"]]


def test_every_key_of_kafka() -> None:
    assert {(key.name, key.value) for key in ApiKey} == {(fact["key"], fact["id"]) for fact in ALL}
    assert set(APIS) == {fact["id"] for fact in SERVED}
    assert len(ALL) == 93


@pytest.mark.parametrize("fact", SERVED, ids=lambda fact: fact["name"])
def test_an_api_is_as_kafka_has_it(fact: dict[str, Any]) -> None:
    key = ApiKey(fact["id"])
    low, high, unstable = fact["minVersion"], fact["maxVersion"], fact["maxVersionUnstable"]
    info = api_info(key)
    assert valid_versions(key) == (low, high)
    assert info.unstable_max_version == unstable
    assert latest_version_unstable(key) == (unstable > high)
    assert list(info.listeners) == fact["listeners"]
    assert (info.forwardable, info.cluster_action) == (fact["forwardable"], fact["clusterAction"])
    versions = range(low, unstable + 1)
    requests = [request_header_version(key, version) for version in versions]
    responses = [response_header_version(key, version) for version in versions]
    assert requests == fact["requestHeaderVersions"]
    assert responses == fact["responseHeaderVersions"]


@pytest.mark.parametrize("key", sorted(APIS))
def test_the_message_classes_agree_with_the_table(key: int) -> None:
    info = api_info(key)
    for message, suffix in ((request_class(key), "Request"), (response_class(key), "Response")):
        assert message.__name__ == info.name + suffix
        assert key == message.API_KEY
        assert (message.VERSIONS.low, message.VERSIONS.high) == (
            info.oldest_version,
            info.unstable_max_version,
        )
        for version in range(info.oldest_version, info.unstable_max_version + 1):
            assert (version in message.FLEXIBLE) == (version >= info.flexible_from)
    assert set(info.listeners) == set(request_class(key).LISTENERS)


def test_versions_dropped_by_kafka_4_are_declared_where_old_clients_need_them() -> None:
    older = {
        key.name
        for key in ApiKey
        if key in APIS and api_info(key).oldest_version != api_info(key).min_version
    }
    assert {"PRODUCE", "FETCH", "LIST_OFFSETS", "OFFSET_COMMIT", "OFFSET_FETCH"} <= older
    assert all(api_info(ApiKey[name]).oldest_version == 0 for name in older)
    assert {request_header_version(key, 0) for key in (ApiKey.PRODUCE, ApiKey.FETCH)} == {1}


@pytest.mark.parametrize("version", [0, 3, 4, 5, 127])
def test_the_header_of_an_api_versions_response_is_always_version_0(version: int) -> None:
    assert response_header_version(ApiKey.API_VERSIONS, version) == 0


@pytest.mark.parametrize("key", [-1, 4, 5, 6, 7, 93, 32767])
def test_unknown_and_removed_apis(key: int) -> None:
    for function in (api_info, valid_versions, request_class, response_class):
        with pytest.raises(KafkaError) as caught:
            function(key)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
