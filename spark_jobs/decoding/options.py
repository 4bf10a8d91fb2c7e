"""What values are, as `archive` and `dlq` are told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, cast, get_args

from ..errors import JobError
from ..options import Option
from .decoder import (
    AvroDecoder,
    FramedDecoder,
    JsonDecoder,
    ProtobufDecoder,
    TextDecoder,
    TypedDecoder,
)
from .errors import SchemaProblem
from .registry import registry_at
from .types import Schema

Decode = Literal["none", "string", "json", "avro", "confluent-avro", "protobuf"]
DECODE: Final = get_args(Decode)
TOPIC_MARK: Final = "{topic}"

DECODE_OPTIONS: Final = (
    Option(
        "decode",
        "values are UTF-8 (string), json, avro, Avro behind the id of its schema (confluent-avro), "
        "or protobuf (default: none, or json with a schema)",
        choices=DECODE,
    ),
    Option("schema", "JSON values must fit this schema: 'id long NOT NULL, name string'", "DDL"),
    Option(
        "schemaFile",
        "the schema of Avro values; '{topic}' in it is the topic's name",
        "PATH",
    ),
    Option(
        "schemaRegistry",
        "of confluent-avro: the URL of a registry, or a folder with files ID.avsc",
        "URL|PATH",
    ),
    Option(
        "schemaRegistryCredentials",
        "'user:password' for the registry, as ${file:PATH} or ${env:NAME}",
        "TEXT",
    ),
    Option(
        "descriptorFile",
        "of protobuf: what protoc --include_imports --descriptor_set_out has written",
        "PATH",
    ),
    Option("message", "of protobuf: the message's name, also topic=name,topic=name", "NAME"),
)


@dataclass(frozen=True)
class DecodeOptions:
    """decode: of values. schema: DDL of JSON values, empty for any. schema_file: of Avro values.
    registry, credentials: of framed ones. descriptor_file, message: of Protobuf ones.
    """

    decode: Decode = "none"
    schema: str = ""
    schema_file: str = ""
    registry: str = ""
    credentials: str = field(default="", repr=False)
    descriptor_file: str = ""
    message: str = ""

    def check(self, *topics: str) -> None:
        """Raises JobError unless what the decoding needs can be had, without Spark."""
        if self.decode == "confluent-avro":
            self.framed()
        elif self.decode in ("avro", "protobuf"):
            for topic in topics:
                self.typed(topic, None)

    def framed(self) -> FramedDecoder:
        """Of confluent-avro. Raises JobError if the registry cannot be asked."""
        registry = registry_at(self.registry, self.credentials)
        registry.check()
        return FramedDecoder(registry)

    def typed(self, topic: str, schema: Schema | None) -> TypedDecoder | None:
        """Of a topic; None for values that stay bytes. schema: of `self.schema`. Raises JobError
        for a schema that cannot be had. Not for confluent-avro, whose values have many types.
        """
        match self.decode:
            case "none":
                return None
            case "string":
                return TextDecoder()
            case "json":
                return JsonDecoder(schema)
            case "avro":
                path = self.schema_file.replace(TOPIC_MARK, topic)
                text = _content("--schemaFile", path).decode(errors="replace")
                try:
                    return AvroDecoder((text,))
                except SchemaProblem as error:
                    raise JobError(f"--schemaFile {path}: {error}") from error
        try:
            return ProtobufDecoder(
                _content("--descriptorFile", self.descriptor_file), self._message(topic)
            )
        except SchemaProblem as error:
            raise JobError(f"--descriptorFile {self.descriptor_file}: {error}") from error

    def _message(self, topic: str) -> str:
        """Of a topic."""
        pairs = [each.strip().partition("=") for each in self.message.split(",")]
        for name, mark, message in pairs:
            if not mark:
                return name
            if name == topic:
                return message
        raise JobError(f"--message names none for topic {topic}: add {topic}=NAME")


def _content(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise JobError(f"{option} {path}: {error.strerror or error}") from error


BYTES: Final = DecodeOptions()
"""Values stay as they are."""

_NEEDED: Final[Mapping[str, str]] = {
    "schema": "json",
    "schemaFile": "avro",
    "schemaRegistry": "confluent-avro",
    "schemaRegistryCredentials": "confluent-avro",
    "descriptorFile": "protobuf",
    "message": "protobuf",
}
"""What an option is for."""

_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": ("schemaFile",),
    "confluent-avro": ("schemaRegistry",),
    "protobuf": ("descriptorFile", "message"),
}


def decode_options(values: Mapping[str, str]) -> DecodeOptions:
    """Of a job's collected values. Raises JobError."""
    decode = values.get("decode", "json" if "schema" in values else "none")
    for name, wanted in _NEEDED.items():
        if name in values and decode != wanted:
            raise JobError(f"--{name} is one of {wanted} values, and --decode is {decode}")
    for name in _REQUIRED.get(decode, ()):
        if not values.get(name):
            raise JobError(f"--decode {decode} needs --{name}")
    return DecodeOptions(
        cast("Decode", decode),
        values.get("schema", ""),
        values.get("schemaFile", ""),
        values.get("schemaRegistry", ""),
        values.get("schemaRegistryCredentials", ""),
        values.get("descriptorFile", ""),
        values.get("message", ""),
    )
