"""Which APIs `benchmarks/api_attack` attacks, and what its requests carry."""

from __future__ import annotations

import pytest

from benchmarks.attack_bodies import Generator
from benchmarks.attack_controllers import envelope_payloads
from benchmarks.attack_scenes import BROKER, CONTROLLER, chosen
from benchmarks.attack_telemetry import _compressed, _metrics, telemetry_payloads
from benchmarks.attack_values import OTHER_DIRECTORY_ID, Names
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.compression import Compression, decompress
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.framing import decode_request_header
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest
from kbroker.protocol.otlp import read_points
from kbroker.server.handlers import all_handlers, controller_handlers, telemetry_handlers

SIZE = 4096


def test_every_api_of_either_listener_is_attacked_once() -> None:
    broker = {each.api_key for each in [*all_handlers(), *telemetry_handlers()]}
    controller = {each.api_key for each in controller_handlers()} | {ApiKey.ENVELOPE}
    attacked = [api.api_key for _, apis in chosen(None, []) for api in apis]
    assert set(attacked) == broker | controller
    assert sorted(key for key in attacked if attacked.count(key) > 1) == sorted(
        2 * [ApiKey.FETCH, ApiKey.DESCRIBE_CLUSTER]  # each type of listener has its own
    )


def test_apis_are_chosen_by_name_and_listener() -> None:
    assert len(chosen(None, ["fetch"])) == 2
    ((scene, (api,)),) = chosen(CONTROLLER, ["Fetch"])
    assert scene.title(api.api_key) == "Fetch (controller)"
    ((scene, (api,)),) = chosen(BROKER, ["Fetch"])
    assert scene.title(api.api_key) == "Fetch"
    with pytest.raises(ValueError, match="no API is called vote"):
        chosen(BROKER, ["Vote"])


def test_tagged_fields_are_attacked_one_by_one() -> None:
    names = [Names("plain")]
    own = Generator(ApiKey.BROKER_HEARTBEAT, 1, names, SIZE, tagged=True).attacks()
    found = {f"{each.kind} {each.detail}": each for each in own}
    body = found["repeated offline_log_dirs (plain)"].write()
    request, end = decode(BrokerHeartbeatRequest, body, 1)
    assert end == len(body)
    assert request.offline_log_dirs == [OTHER_DIRECTORY_ID] * (SIZE // 16)
    without = Generator(ApiKey.BROKER_HEARTBEAT, 1, names, SIZE).attacks()
    assert not any("offline_log_dirs" in each.detail for each in without)


def test_metrics_are_what_their_names_say() -> None:
    found = _metrics(SIZE)
    names = [each.name for each in read_points(found["distinct metrics"])]
    assert len(names) == len(set(names)) > 20
    assert {len(each.attributes) for each in read_points(found["points with 16 attributes"])} == {
        16
    }
    for codec in list(Compression)[1:]:
        packed = _compressed(codec, SIZE)
        unpacked = decompress(codec, packed["half of the limit"], max_bytes=SIZE)
        assert list(read_points(unpacked))
        assert len(packed["zeros"]) < SIZE
    payloads = dict(telemetry_payloads(Names("plain"), SIZE))
    assert len(payloads) == len(found) + 4 * len(_compressed(Compression.GZIP, SIZE))


def test_an_envelope_carries_what_brokers_forward() -> None:
    inner = {
        decode_request_header(memoryview(fields()[("request_data",)])).api_key
        for name, fields in envelope_payloads(Names("plain"), SIZE)
        if " repeated: " in name
    }
    assert {ApiKey.CREATE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS} <= inner
