"""Bytes to a value: what `archive` and `dlq` decode with, in tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .avro import Reader as AvroReader
from .avro import parse_schema
from .avro_types import spark_type
from .descriptors import parse_descriptors
from .errors import SchemaProblem, Undecodable
from .json_values import checked_json, not_utf8, parse_json, shaped
from .protobuf import Reader as ProtobufReader
from .protobuf import spark_type as protobuf_type
from .registry import FRAME_BYTES, Registry, Texts, schema_id
from .types import Schema


class Decoder(Protocol):
    """Decodes values. Picklable."""

    def value(self, content: bytes) -> Any:
        """What Arrow takes for the value's type. Raises Undecodable."""
        ...


class TypedDecoder(Decoder, Protocol):
    """A decoder whose values have one type."""

    @property
    def type(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """UTF-8."""

    type: Schema = "string"

    def value(self, content: bytes) -> str:
        """See `Decoder`."""
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(not_utf8(content, error)) from error


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """JSON. schema: of the values; None keeps them as they are written."""

    schema: Schema | None = None

    @property
    def type(self) -> Schema:
        """See `TypedDecoder`."""
        return "string" if self.schema is None else self.schema

    def value(self, content: bytes) -> Any:
        """See `Decoder`."""
        if self.schema is None:
            parse_json(content)
            return content.decode()
        return shaped(checked_json(content, self.schema), self.schema)


@dataclass
class AvroDecoder:
    """Avro of one schema, `start` bytes behind the beginning; with a start, it is Confluent's.
    Raises SchemaProblem, when it is made, for a schema that cannot be used.
    """

    texts: Texts
    start: int = 0
    type: Schema = field(init=False)
    _reader: AvroReader = field(init=False, repr=False)

    def __post_init__(self) -> None:
        *references, text = self.texts
        schema = parse_schema(text, references)
        self.type = spark_type(schema)
        self._reader = AvroReader(schema, is_framed=self.start > 0)

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[Texts, int]]:
        return AvroDecoder, (self.texts, self.start)

    def value(self, content: bytes) -> Any:
        """See `Decoder`."""
        try:
            return self._reader.value(content, self.start)
        except Undecodable as error:
            raise Undecodable(f"the value is no Avro of its schema: {error}") from error


@dataclass
class FramedDecoder:
    """Avro behind the id of its schema."""

    registry: Registry
    _decoders: dict[int, AvroDecoder | Undecodable] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[FramedDecoder], tuple[Registry]]:
        return FramedDecoder, (self.registry,)

    def value(self, content: bytes) -> Any:
        """See `Decoder`. Raises JobError if the registry cannot be asked."""
        return self.decoder(schema_id(content)).value(content)

    def knows(self, number: int) -> bool:
        """Whether a schema was looked up before and can be used."""
        return isinstance(self._decoders.get(number), AvroDecoder)

    def decoder(self, number: int) -> AvroDecoder:
        """Of a schema. Raises Undecodable, or JobError as above."""
        if number not in self._decoders:
            texts = self.registry.texts(number)
            try:
                self._decoders[number] = AvroDecoder(texts, FRAME_BYTES)
            except SchemaProblem as error:
                self._decoders[number] = Undecodable(f"schema {number}: {error}")
        found = self._decoders[number]
        if isinstance(found, Undecodable):
            raise Undecodable(str(found))
        return found


@dataclass
class GivenSchemas:
    """As `FramedDecoder`, by schemas that were looked up before. refused: why other ids cannot be
    used.
    """

    texts: Mapping[int, Texts]
    refused: Mapping[int, str]
    _decoders: dict[int, AvroDecoder] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[GivenSchemas], tuple[Any, Any]]:
        return GivenSchemas, (self.texts, self.refused)

    def value(self, content: bytes) -> Any:
        """See `Decoder`."""
        number = schema_id(content)
        decoder = self._decoders.get(number)
        if decoder is None:
            if number not in self.texts:
                raise Undecodable(self.refused.get(number, f"schema {number} was not looked up"))
            try:
                decoder = self._decoders[number] = AvroDecoder(self.texts[number], FRAME_BYTES)
            except SchemaProblem as error:  # the driver could use it; a task's stack may be fuller
                raise Undecodable(f"schema {number}: {error}") from error
        return decoder.value(content)


@dataclass
class ProtobufDecoder:
    """A message of a descriptor set. Raises SchemaProblem, when it is made, for one that cannot be
    used.
    """

    descriptors: bytes = field(repr=False)
    message: str
    type: Schema = field(init=False)
    _reader: ProtobufReader = field(init=False, repr=False)

    def __post_init__(self) -> None:
        types = parse_descriptors(self.descriptors)
        message = types.message(self.message)
        self.type = protobuf_type(message, types)
        self._reader = ProtobufReader(message, types)

    def __reduce__(self) -> tuple[type[ProtobufDecoder], tuple[bytes, str]]:
        return ProtobufDecoder, (self.descriptors, self.message)

    def value(self, content: bytes) -> Any:
        """See `Decoder`."""
        try:
            return self._reader.value(content)
        except Undecodable as error:
            raise Undecodable(f"the value is no message {self.message}: {error}") from error
