"""What values are, as jobs are told it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.decoding.decoder import AvroDecoder, JsonDecoder, ProtobufDecoder, TextDecoder
from spark_jobs.decoding.options import BYTES, DECODE, DecodeOptions, decode_options
from spark_jobs.errors import JobError
from tests.spark.decoding.protobuf_bytes import shop


def test_values() -> None:
    assert decode_options({}) == BYTES
    assert decode_options({"schema": "a int"}) == DecodeOptions("json", "a int")
    framed = {
        "decode": "confluent-avro",
        "schemaRegistry": "http://r",
        "schemaRegistryCredentials": "a:b",
    }
    assert decode_options(framed) == DecodeOptions(
        "confluent-avro", registry="http://r", credentials="a:b"
    )
    assert "a:b" not in repr(decode_options(framed))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"decode": "avro"}, "--decode avro needs --schemaFile"),
        ({"decode": "confluent-avro"}, "needs --schemaRegistry"),
        ({"decode": "protobuf", "message": "m"}, "needs --descriptorFile"),
        ({"decode": "protobuf", "descriptorFile": "d"}, "needs --message"),
        ({"schemaFile": "x"}, "--schemaFile is one of avro values, and --decode is none"),
        ({"decode": "string", "schema": "a int"}, "--schema is one of json values"),
    ],
)
def test_what_does_not_fit(given: dict[str, str], said: str) -> None:
    with pytest.raises(JobError, match=said):
        decode_options(given)


def test_decoders_by_topic(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text('"int"')
    (tmp_path / "bad.avsc").write_text("{}")
    (tmp_path / "shop.desc").write_bytes(shop())
    assert BYTES.typed("orders", None) is None
    assert DecodeOptions("string").typed("orders", None) == TextDecoder()
    assert DecodeOptions("json").typed("orders", "long") == JsonDecoder("long")
    avro = DecodeOptions("avro", schema_file=f"{tmp_path}/{{topic}}.avsc")
    found = avro.typed("orders", None)
    assert isinstance(found, AvroDecoder) and found.type == "integer"
    with pytest.raises(JobError, match=r"--schemaFile .*/none.avsc: No such file"):
        avro.check("orders", "none")
    with pytest.raises(JobError, match=r"--schemaFile .*/bad.avsc: it is no schema of Avro"):
        avro.check("bad")
    descriptors = str(tmp_path / "shop.desc")
    protobuf = DecodeOptions(
        "protobuf", descriptor_file=descriptors, message="orders=Order, items=Item"
    )
    found = protobuf.typed("items", None)
    assert isinstance(found, ProtobufDecoder) and found.message == "Item"
    with pytest.raises(JobError, match="--message names none for topic other: add other=NAME"):
        protobuf.check("items", "other")
    with pytest.raises(JobError, match="there is no message Bill"):
        DecodeOptions("protobuf", descriptor_file=descriptors, message="Bill").check("orders")


def test_a_registry_is_asked_at_the_start() -> None:
    with pytest.raises(JobError, match="--schemaRegistry nowhere"):
        DecodeOptions("confluent-avro", registry="nowhere").check("orders")
    for decode in set(DECODE) - {"avro", "confluent-avro", "protobuf"}:
        DecodeOptions(decode).check("orders")
