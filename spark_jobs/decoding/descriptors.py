"""Messages out of a descriptor set (`protoc --include_imports --descriptor_set_out`), which is
itself a message: descriptor.proto. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .errors import SchemaProblem, Undecodable
from .wire import BYTES, fields

(
    DOUBLE,
    FLOAT,
    INT64,
    UINT64,
    INT32,
    FIXED64,
    FIXED32,
    BOOL,
    STRING,
    GROUP,
    MESSAGE,
    BYTES_TYPE,
    UINT32,
    ENUM,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
) = range(1, 19)
"""FieldDescriptorProto.Type"""

_REPEATED: Final = 3
_FILE = 1
_FILE_PACKAGE, _FILE_MESSAGES, _FILE_ENUMS = 2, 4, 5
_MESSAGE_NAME, _MESSAGE_FIELDS, _MESSAGE_NESTED, _MESSAGE_ENUMS, _MESSAGE_OPTIONS = 1, 2, 3, 4, 7
_OPTION_MAP_ENTRY = 7
_FIELD_NAME, _FIELD_NUMBER, _FIELD_LABEL, _FIELD_TYPE, _FIELD_TYPE_NAME = 1, 3, 4, 5, 6
_FIELD_ONEOF = 9
_ENUM_NAME, _ENUM_VALUES = 1, 2
_VALUE_NAME, _VALUE_NUMBER = 1, 2


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field. kind: one of the numbers above. type_name: of a message or an enum, in full. oneof:
    which one of its message it is a member of, None for none; an `optional` field of proto3 is the
    only member of one.
    """

    name: str
    number: int
    kind: int
    is_repeated: bool = False
    type_name: str = ""
    oneof: int | None = None


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message. is_map_entry: the key and the value of a map, which has it as repeated field."""

    name: str
    fields: tuple[FieldType, ...] = ()
    is_map_entry: bool = False


@dataclass(frozen=True, slots=True)
class Types:
    """Messages, and the names of enums by their numbers, by full name without a dot before it."""

    messages: Mapping[str, MessageType] = field(default_factory=dict)
    enums: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def message(self, name: str) -> MessageType:
        """By its full name, or by the end of it. Raises SchemaProblem."""
        wanted = name.removeprefix(".")
        if wanted in self.messages:
            return self.messages[wanted]
        found = [each for each in self.messages if each.endswith(f".{wanted}")]
        if len(found) == 1:
            return self.messages[found[0]]
        known = [each.name for each in self.messages.values() if not each.is_map_entry]
        shown = ", ".join(sorted(known)[:5]) + (" and more" if len(known) > 5 else "")
        raise SchemaProblem(f"there is no message {name}: there is {shown or 'none'}")


def parse_descriptors(content: bytes) -> Types:
    """Raises SchemaProblem."""
    messages: dict[str, MessageType] = {}
    enums: dict[str, Mapping[int, str]] = {}
    try:
        for file in _parts(content, _FILE):
            package = _text(file, _FILE_PACKAGE)
            for each in _parts(file, _FILE_MESSAGES):
                _add_message(each, package, messages, enums)
            for each in _parts(file, _FILE_ENUMS):
                _add_enum(each, package, enums)
    except (Undecodable, RecursionError) as error:
        raise SchemaProblem(f"it is no descriptor set ({error})") from error
    return Types(messages, enums)


def _add_message(
    content: bytes,
    scope: str,
    messages: dict[str, MessageType],
    enums: dict[str, Mapping[int, str]],
) -> None:
    name = _joined(scope, _text(content, _MESSAGE_NAME))
    is_map_entry = any(
        _number(options, _OPTION_MAP_ENTRY) for options in _parts(content, _MESSAGE_OPTIONS)
    )
    found = tuple(_field(each) for each in _parts(content, _MESSAGE_FIELDS))
    messages[name] = MessageType(name, found, is_map_entry)
    for each in _parts(content, _MESSAGE_NESTED):
        _add_message(each, name, messages, enums)
    for each in _parts(content, _MESSAGE_ENUMS):
        _add_enum(each, name, enums)


def _add_enum(content: bytes, scope: str, enums: dict[str, Mapping[int, str]]) -> None:
    names: dict[int, str] = {}
    for each in _parts(content, _ENUM_VALUES):
        names.setdefault(_number(each, _VALUE_NUMBER), _text(each, _VALUE_NAME))
    enums[_joined(scope, _text(content, _ENUM_NAME))] = names


def _field(content: bytes) -> FieldType:
    return FieldType(
        _text(content, _FIELD_NAME),
        _number(content, _FIELD_NUMBER),
        _number(content, _FIELD_TYPE),
        _number(content, _FIELD_LABEL) == _REPEATED,
        _text(content, _FIELD_TYPE_NAME).removeprefix("."),
        next(iter(_numbers(content, _FIELD_ONEOF)), None),
    )


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _parts(content: bytes, number: int) -> Iterator[bytes]:
    for each in fields(content):
        if each.number == number and each.wire_type == BYTES and isinstance(each.value, bytes):
            yield each.value


def _text(content: bytes, number: int) -> str:
    found = list(_parts(content, number))
    return found[-1].decode(errors="replace") if found else ""


def _number(content: bytes, number: int) -> int:
    """Enums may have negative numbers, which are sent as 64 bits."""
    found = _numbers(content, number)
    value = found[-1] if found else 0
    return value - (1 << 64) if value >= 1 << 63 else value


def _numbers(content: bytes, number: int) -> list[int]:
    return [f.value for f in fields(content) if f.number == number and isinstance(f.value, int)]
