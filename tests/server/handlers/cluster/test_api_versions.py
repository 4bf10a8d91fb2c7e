"""ApiVersions against a conversation with a running Kafka (tests/data/wire/apiversions.hex.txt)."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.metadata.features import KRAFT_VERSION
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import encode_request_frame
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.quorum.formatting.bootstrap import DEFAULT_LEVELS
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import NO_AUTHORISATION, ApiPolicy, Versions
from kbroker.server.dispatch import Dispatcher
from kbroker.server.handlers.cluster import api_versions
from kbroker.server.services import Services
from kbroker.server.session import Session

WIRE = Path(__file__).parents[3] / "data" / "wire" / "apiversions.hex.txt"


def conversation() -> dict[int, tuple[bytes, bytes]]:
    """Request and response frames of the broker listener by version, without their lengths."""
    found = {}
    pattern = r"# broker listener, ApiVersions v(\d+):.*\nrequest (\w+)\nresponse (\w+)"
    for version, request, response in re.findall(pattern, WIRE.read_text()):
        found[int(version)] = (bytes.fromhex(request), bytes.fromhex(response))
    return found


CONVERSATION = conversation()


def answer_of_kafka(version: int) -> ApiVersionsResponse:
    response, _ = decode(ApiVersionsResponse, CONVERSATION[version][1], version, 4)
    return response


def dispatcher() -> Dispatcher:
    """One that serves what Kafka's live answer lists, with the features of a new cluster."""
    metadata = SimpleNamespace(
        image=SimpleNamespace(offset=6),
        finalized_features=lambda: {**DEFAULT_LEVELS, KRAFT_VERSION: 1},
    )
    handlers = [
        ApiHandler(
            ApiKey(entry.api_key),
            lambda services, context, request: None,
            lambda request, error, message: ApiVersionsResponse(),
            ApiPolicy(Versions(entry.min_version, entry.max_version), NO_AUTHORISATION),
        )
        for entry in answer_of_kafka(0).api_keys
        if entry.api_key != ApiKey.API_VERSIONS
    ]
    services = SimpleNamespace(node_id=1, metadata=metadata, image=metadata.image)
    return Dispatcher([*api_versions.HANDLERS, *handlers], cast(Services, services))


def answer(frame: bytes) -> bytes:
    dispatch = dispatcher()
    connection = Session("c", api_versions=dispatch.api_versions)
    pending = dispatch.dispatch(connection, memoryview(bytearray(frame)), 0)
    assert pending is not None
    return b"".join(cast(list[bytes], dispatch.render(pending)))[4:]


@pytest.mark.parametrize("version", [0, 1, 2, 5])
def test_the_bytes_of_kafka(version: int) -> None:
    request, response = CONVERSATION[version]
    assert answer(request).hex() == response.hex()


@pytest.mark.parametrize("version", [3, 4])
def test_the_answer_of_kafka_with_features(version: int) -> None:
    request, _ = CONVERSATION[version]
    reply = answer(request)
    ours, end = decode(ApiVersionsResponse, reply, version, 4)
    kafkas = answer_of_kafka(version)
    assert ours.api_keys == kafkas.api_keys
    for response in (ours, kafkas):
        response.supported_features.sort(key=lambda feature: feature.name)
        response.finalized_features.sort(key=lambda feature: feature.name)
    assert ours.supported_features == kafkas.supported_features
    assert ours.finalized_features == kafkas.finalized_features
    assert ours.finalized_features_epoch == 6
    assert end == len(reply)


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        pytest.param("apache-kafka-java", "4.3.1", ErrorCode.NONE, id="Java"),
        pytest.param("librdkafka", "2.12.1-dev", ErrorCode.NONE, id="librdkafka"),
        pytest.param("", "", ErrorCode.INVALID_REQUEST, id="empty"),
        pytest.param("-x", "1", ErrorCode.INVALID_REQUEST, id="leading dash"),
        pytest.param("a b", "1", ErrorCode.INVALID_REQUEST, id="space"),
        pytest.param("x\n", "1", ErrorCode.INVALID_REQUEST, id="line feed"),
    ],
)
def test_client_software_is_checked_and_kept(name: str, version: str, error: ErrorCode) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    frame = b"".join(cast(list[bytes], encode_request_frame(request, 4, 1, None)))[4:]
    connection = Session("c", "PLAINTEXT", "127.0.0.1")
    pending = dispatcher().dispatch(connection, memoryview(bytearray(frame)), 0)
    assert pending is not None and isinstance(pending.message, ApiVersionsResponse)
    assert pending.message.error_code == error
    kept = (connection.client_software_name, connection.client_software_version)
    assert kept == ((name, version) if error == ErrorCode.NONE else ("unknown", "unknown"))
