"""How a Kafka message is declared: one class for all its versions, one nested class per struct.

    class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+", listeners="broker"):
        class FetchTopic(Struct):
            topic: str = string("0-12", ignorable=True)
            topic_id: Uuid = uuid("13+", ignorable=True)

        max_wait_ms: int = int32("0+")
        topics: list[FetchRequest.FetchTopic] = array("FetchTopic", "0+")

Field names are Kafka's in snake_case; version ranges are Kafka's ("0+", "2-7", "3", "none"). The
classes have slots, a keyword-only constructor in which every field has Kafka's default, equality
and a repr. `codec` compiles a declaration into functions. Nested structs are named by string, since
a class body does not see its siblings; a misspelt name fails when the module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Protocol, TypeVar, dataclass_transform, runtime_checkable

from kbroker.model import ZERO_UUID

M = TypeVar("M", bound="Struct")

MAX_VERSION: Final = 32767


@runtime_checkable
class RecordsPayload(Protocol):
    """Record bytes that are stored elsewhere, such as a range of a file: sent by reference."""

    @property
    def size(self) -> int: ...


Binary = bytes | bytearray | memoryview
"""A bytes field. Decoding gives a memoryview on the received buffer: copy it to keep it."""

Records = bytes | bytearray | memoryview | RecordsPayload
"""A records field: whole batches, or a reference that knows its size."""


def size_of(records: Records) -> int:
    """Size in bytes of records in memory or by reference."""
    return len(records) if isinstance(records, bytes | bytearray | memoryview) else records.size


class _Missing:
    """Marks an argument that was not given, where the default is a new object."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()

_PRIMITIVE_DEFAULTS: Final[Mapping[str, object]] = {
    "boolean": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "uint32": 0,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}


class VersionRange:
    """Versions from low to high, both inclusive; empty if low > high."""

    __slots__ = ("high", "low")

    def __init__(self, text: str) -> None:
        if text == "none":
            self.low, self.high = 1, 0
        elif text.endswith("+"):
            self.low, self.high = int(text[:-1]), MAX_VERSION
        else:
            low, _, high = text.partition("-")
            self.low, self.high = int(low), int(high or low)

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __str__(self) -> str:
        if self.low > self.high:
            return "none"
        if self.high == MAX_VERSION:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@cache
def _range(text: str) -> VersionRange:
    return VersionRange(text)


class Field:
    """One field of a struct in all versions.

    type_name: a primitive's name, "struct" or "array"; element: what an array holds, a primitive's
    name or "struct". struct: the class behind "struct". tag: its number in the versions `tagged`.
    flexible: overrides the versions with compact lengths; None: those of the message. default:
    MISSING where it is a new object (list, struct).
    """

    __slots__ = (
        "default",
        "element",
        "flexible",
        "ignorable",
        "name",
        "nullable",
        "struct",
        "struct_name",
        "tag",
        "tagged",
        "type_name",
        "versions",
    )

    name: str
    struct: type[Struct]

    def __init__(
        self,
        type_name: str,
        versions: str,
        *,
        default: Any,
        element: str = "",
        struct_name: str = "",
        nullable: str = "none",
        tag: int | None = None,
        tagged: str = "none",
        ignorable: bool = False,
        flexible: str | None = None,
    ) -> None:
        self.type_name = type_name
        self.versions = _range(versions)
        self.default = default
        self.element = element
        self.struct_name = struct_name
        self.nullable = _range(nullable)
        self.tag = tag
        self.tagged = _range(tagged)
        self.ignorable = ignorable
        self.flexible = None if flexible is None else _range(flexible)

    def default_value(self) -> Any:
        """The default; a new object if it is mutable."""
        if self.default is not MISSING:
            return self.default
        return [] if self.type_name == "array" else self.struct()

    @property
    def holds_bytes(self) -> bool:
        """Whether decoding returns views on the message's bytes, in this field or in its
        structs.
        """
        kind = self.element if self.type_name == "array" else self.type_name
        if kind == "struct":
            return any(field.holds_bytes for field in self.struct.FIELDS)
        return kind in ("bytes", "records")

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.type_name}, {self.versions})"


def _primitive(type_name: str) -> Callable[..., Any]:
    default_default = _PRIMITIVE_DEFAULTS[type_name]

    def specifier(
        versions: str,
        *,
        default: Any = default_default,
        nullable: str = "none",
        tag: int | None = None,
        tagged: str = "none",
        ignorable: bool = False,
        flexible: str | None = None,
    ) -> Any:
        return Field(
            type_name,
            versions,
            default=default,
            nullable=nullable,
            tag=tag,
            tagged=tagged,
            ignorable=ignorable,
            flexible=flexible,
        )

    specifier.__name__ = specifier.__qualname__ = type_name
    return specifier


boolean = _primitive("boolean")
int8 = _primitive("int8")
int16 = _primitive("int16")
int32 = _primitive("int32")
int64 = _primitive("int64")
uint16 = _primitive("uint16")
uint32 = _primitive("uint32")
float64 = _primitive("float64")
uuid = _primitive("uuid")
string = _primitive("string")
binary = _primitive("bytes")
records = _primitive("records")


def struct(
    struct_name: str,
    versions: str,
    *,
    default: Any = MISSING,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
) -> Any:
    """A field that holds one nested struct, named by the class inside the message."""
    return Field(
        "struct",
        versions,
        default=default,
        struct_name=struct_name,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
    )


def array(
    element: str,
    versions: str,
    *,
    default: Any = MISSING,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
) -> Any:
    """A list field. element: a primitive's name ("int32") or the name of a nested struct."""
    is_primitive = element in _PRIMITIVE_DEFAULTS
    return Field(
        "array",
        versions,
        default=default,
        element=element if is_primitive else "struct",
        struct_name="" if is_primitive else element,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
    )


@dataclass_transform(eq_default=True, kw_only_default=True)
class StructMeta(type):
    """Turns the fields of a class body into slots and FIELDS; a message links its structs."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        versions: str | None = None,
        flexible: str = "none",
        api_key: int = -1,
        listeners: str = "",
        latest_version_unstable: bool = False,
    ) -> StructMeta:
        fields = tuple(value for value in namespace.values() if isinstance(value, Field))
        names = [key for key, value in namespace.items() if isinstance(value, Field)]
        for key, field in zip(names, fields, strict=True):
            field.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(names)
        namespace["FIELDS"] = fields
        if versions is not None:
            namespace["VERSIONS"] = _range(versions)
            namespace["FLEXIBLE"] = _range(flexible)
            namespace["API_KEY"] = api_key
            namespace["LISTENERS"] = tuple(listeners.split())
            namespace["LATEST_VERSION_UNSTABLE"] = latest_version_unstable
            namespace["DECODERS"] = {}
            namespace["ENCODERS"] = {}
            namespace["STEP_DECODERS"] = {}
            namespace["STEP_ENCODERS"] = {}
            _link_structs(name, namespace)
        return super().__new__(mcls, name, bases, namespace)

    def __init__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any
    ) -> None:
        super().__init__(name, bases, namespace)


def _link_structs(message_name: str, namespace: dict[str, Any]) -> None:
    structs = {key: value for key, value in namespace.items() if isinstance(value, StructMeta)}
    owners = [(message_name, namespace["FIELDS"])]
    owners += [(f"{message_name}.{key}", value.FIELDS) for key, value in structs.items()]
    for owner, fields in owners:
        for field in fields:
            if not field.struct_name:
                continue
            if field.struct_name not in structs:
                raise TypeError(
                    f"{owner}.{field.name}: {message_name} has no struct {field.struct_name}"
                )
            field.struct = structs[field.struct_name]


class Struct(metaclass=StructMeta):
    """A group of fields. Mutable, but read-only by convention once it is passed on."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        cls = type(self)  # only called before the class's first use, to compile its own
        cls.__init__ = _compile_constructor(cls)  # type: ignore[method-assign]  # see above
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # mutable values have no hash

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({values})"


def _compile_constructor(cls: type[Struct]) -> Callable[..., None]:
    """Write `__init__` for one class: assignments, and fresh lists and structs as defaults."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for field in cls.FIELDS:
        name = field.name
        if field.default is not MISSING:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
            body.append(f"    self.{name} = {name}")
            continue
        fresh = "[]"
        if field.type_name == "struct":
            scope[f"Struct_{name}"] = field.struct
            fresh = f"Struct_{name}()"
        parameters.append(f"{name}=MISSING")
        body.append(f"    self.{name} = {fresh} if {name} is MISSING else {name}")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n" + "\n".join(
        body or ["    pass"]
    )
    exec(source, scope)  # the source is made of declared field names only
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


Decoder = Callable[[bytes | memoryview, int], tuple[Any, int]]
"""A compiled decoder: (buffer, position) -> (message, position after it)."""

Encoder = Callable[[Any, bytearray, list[Any] | None], bytearray]
"""A compiled encoder: (message, out, parts) -> the last out; see `codec_encode`."""


StepDecoder = Callable[[memoryview, int, list[object]], Generator[None, None, tuple[Any, int]]]
"""As Decoder, but a generator, for messages with very many items. Appends the message to the list
before it reads the first field.
"""

StepEncoder = Callable[[Any, bytearray, list[Any] | None], Generator[None, None, bytearray]]
"""As Encoder, but a generator."""


class Message(Struct):
    """A struct with its own versions: the argument of `codec.decode` and `codec.encode`."""

    KIND: ClassVar[str] = ""
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[VersionRange]
    FLEXIBLE: ClassVar[VersionRange]
    LISTENERS: ClassVar[tuple[str, ...]]
    LATEST_VERSION_UNSTABLE: ClassVar[bool]
    DECODERS: ClassVar[dict[int, Decoder]]
    ENCODERS: ClassVar[dict[int, Encoder]]
    STEP_DECODERS: ClassVar[dict[int, StepDecoder]]
    STEP_ENCODERS: ClassVar[dict[int, StepEncoder]]


class Header(Message):
    """A request or response header."""

    KIND = "header"


class Request(Message):
    """A request body. LISTENERS: the types of listeners on which Kafka serves it."""

    KIND = "request"


class Response(Message):
    """A response body."""

    KIND = "response"


class Data(Message):
    """Bytes embedded in other fields or records: consumer protocol, control records."""

    KIND = "data"


class MetadataRecord(Message):
    """A record of `__cluster_metadata`; API_KEY is its record type."""

    KIND = "metadata"


class CoordinatorKey(Message):
    """The key of an internal topic's record; API_KEY is its record type."""

    KIND = "coordinator-key"


class CoordinatorValue(Message):
    """The value of an internal topic's record; API_KEY is its record type."""

    KIND = "coordinator-value"
