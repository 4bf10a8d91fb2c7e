"""Compiles a declaration into the encoding function of one version. Used by `codec` only.

The generated function is `encode(v0, out, parts) -> bytearray`: it appends to the bytearray `out`;
for a records field by reference it appends `out` and the payload to `parts` and starts a new `out`;
the last one is returned. With `parts` None nothing is passed by reference. Runs of fixed-width
fields, and the length that follows them, become one `struct` call.

With `in_steps` it is a generator that returns that bytearray and yields after every `STEP_ITEMS`
list items.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as StructError
from struct import pack
from typing import Any, Final, NoReturn

from kbroker.protocol.codecs.codec_decode import FIXED, MAX_STRING_BYTES, STEP_ITEMS, is_compact
from kbroker.protocol.codecs.primitives import SMALL_VARINTS, unsigned_varint
from kbroker.protocol.codecs.schema import MISSING, Field, Message, RecordsPayload, Struct
from kbroker.protocol.errors import ErrorCode, KafkaError

BYTES_LIKE: Final = (bytes, bytearray, memoryview)

BY_REFERENCE_BYTES: Final = 4096
"""Bytes-like records longer than this are not copied if `parts` is given."""


def unsupported(name: str, version: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_VERSION, f"{name} is set, but version {version} does not have it"
    )


def null(name: str) -> ValueError:
    return ValueError(f"{name} is None, which this version cannot carry")


def too_long(name: str, size: int) -> ValueError:
    return ValueError(f"{name}: a string of {size} bytes, {MAX_STRING_BYTES} is the limit")


def bad_uuid(name: str, value: bytes) -> ValueError:
    return ValueError(f"{name}: {value!r} is not a uuid of 16 bytes")


def payload_size(name: str, value: RecordsPayload, parts: list[Any] | None) -> int:
    """Size of records that are not bytes-like."""
    if parts is None:
        raise ValueError(f"{name}: records by reference need encode_parts")
    return value.size


def refuse(name: str, error: Exception) -> NoReturn:
    raise ValueError(f"{name} cannot be written: {error}") from error


# Any: an Encoder or, with `in_steps`, a StepEncoder
def compile_encoder(message: type[Message], version: int, *, in_steps: bool = False) -> Any:
    """Write, compile and return the encoding function of one message in one version."""
    writer = _EncoderWriter(message, version, in_steps=in_steps)
    scope = writer.scope
    exec(compile(writer.source(), f"<encode {message.__name__} v{version}>", "exec"), scope)
    return scope["encode"]


class _EncoderWriter:
    """Writes the source. `pending`: the fixed-width writes not yet put into a struct call."""

    __slots__ = (
        "counter",
        "in_steps",
        "indent",
        "lines",
        "message",
        "out",
        "pending",
        "scope",
        "version",
    )

    def __init__(self, message: type[Message], version: int, *, in_steps: bool) -> None:
        self.in_steps = in_steps
        self.message = message
        self.version = version
        self.lines: list[str] = []
        self.indent = 2
        self.pending: list[tuple[str, str]] = []
        self.counter = 0
        self.out = "out"
        self.scope: dict[str, Any] = {
            "pack": pack,
            "uvarint": unsigned_varint,
            "byte": SMALL_VARINTS,
            "unsupported": unsupported,
            "null": null,
            "too_long": too_long,
            "bad_uuid": bad_uuid,
            "payload_size": payload_size,
            "refuse": refuse,
            "BYTES_LIKE": BYTES_LIKE,
            "StructError": StructError,
        }

    def source(self) -> str:
        self.struct(self.message, "v0")
        self.flush()
        body = "\n".join(self.lines)
        name = repr(f"{self.message.__name__} v{self.version}")
        return (
            f"def encode(v0, out, parts):\n{' w = 0' if self.in_steps else ''}\n"
            f" try:\n{'  yield' if self.in_steps else ''}\n{body}\n  return out\n"
            f" except (StructError, TypeError, AttributeError) as error:\n"
            f"  refuse({name}, error)\n"
        )

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def bind(self, prefix: str, value: object) -> str:
        self.counter += 1
        name = f"{prefix}{self.counter}"
        self.scope[name] = value
        return name

    def local(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def packed(self, run: list[tuple[str, str]]) -> str:
        """An expression that packs the run; 'x' is a zero byte without a value."""
        codes = "".join(code for _, code in run)
        values = ", ".join(value for value, code in run if code != "x")
        if not values:
            return repr(bytes(len(codes)))
        return f"{self.bind('p', Layout('>' + codes).pack)}({values})"

    def flush(self) -> None:
        if self.pending:
            self.line(f"{self.out} += {self.packed(self.pending)}")
            self.pending.clear()

    def flush_varint(self, value: str, inline: bool) -> None:
        """Flush the pending run and an unsigned varint after it; up to two bytes in one call."""
        short = self.packed([*self.pending, (value, "B")]) if self.pending else f"byte[{value}]"
        self.line(f"if {value} < 128: {self.out} += {short}")
        if inline:
            two_bytes = [(f"{value} & 127 | 128", "B"), (f"{value} >> 7", "B")]
            self.line(
                f"elif {value} < 16384: {self.out} += {self.packed(self.pending + two_bytes)}"
            )
        if self.pending:
            self.line(f"else: {self.out} += {self.packed(self.pending)} + uvarint({value})")
        else:
            self.line(f"else: {self.out} += uvarint({value})")
        self.pending.clear()

    def label(self, owner: type[Struct], field: Field) -> str:
        return repr(f"{owner.__qualname__}.{field.name}")

    def struct(self, cls: type[Struct], var: str) -> None:
        """Write a struct held in the local `var`. May leave writes pending."""
        tagged = []
        for field in cls.FIELDS:
            source = f"{var}.{field.name}"
            if self.version not in field.versions:
                if not field.ignorable:
                    label = self.label(cls, field)
                    condition = self.is_set(field, source)
                    self.line(f"if {condition}: raise unsupported({label}, {self.version})")
            elif self.version in field.tagged:
                tagged.append(field)
            else:
                self.field(cls, field, source)
        if self.version in self.message.FLEXIBLE:
            self.tagged(cls, var, tagged)

    def is_set(self, field: Field, source: str) -> str:
        """An expression: does the field differ from its default?"""
        if field.default is None:
            return f"{source} is not None"
        nullable = field.nullable.low <= field.nullable.high
        if field.type_name == "struct":
            inner = " or ".join(
                self.is_set(child, f"{source}.{child.name}") for child in field.struct.FIELDS
            )
            return f"({source} is None or {inner or 'False'})" if nullable else f"({inner})"
        if field.default is MISSING or field.default in ("", b""):
            return (
                f"({source} is None or len({source}) != 0)" if nullable else f"len({source}) != 0"
            )
        if isinstance(field.default, bool):
            return f"not {source}" if field.default else source
        if isinstance(field.default, int | str):
            return f"{source} != {field.default!r}"
        return f"{source} != {self.bind('d', field.default)}"

    def field(self, cls: type[Struct], field: Field, source: str) -> None:
        if field.type_name in FIXED:
            if field.type_name == "uuid":  # struct would silently truncate or pad other lengths
                label = self.label(cls, field)
                self.line(f"if len({source}) != 16: raise bad_uuid({label}, {source})")
            self.pending.append((source, FIXED[field.type_name][0]))
            return
        if field.type_name == "struct":
            self.struct_field(cls, field, source)
            return
        label = self.label(cls, field)
        value = self.local("x")
        self.line(f"{value} = {source}")
        compact = is_compact(self.message, field, self.version)
        nullable = self.version in field.nullable
        if field.type_name == "array":
            self.array(label, field, value, compact=compact, nullable=nullable)
        elif field.type_name == "records":
            self.records(label, value, compact=compact, nullable=nullable)
        else:
            is_string = field.type_name == "string"
            self.blob(label, is_string, value, compact=compact, nullable=nullable)

    def null_length(self, label: str, value: str, n: str, *, compact: bool, nullable: bool) -> None:
        """Open the branch for None; the caller adds the `else`."""
        if nullable:
            self.line(f"if {value} is None: {n} = {0 if compact else -1}")
        else:
            self.line(f"if {value} is None: raise null({label})")

    def write_length(self, n: str, *, compact: bool, short: bool = False) -> None:
        if compact:
            self.flush_varint(n, inline=not short)
        else:
            self.pending.append((n, "h" if short else "i"))
            self.flush()

    def blob(
        self, label: str, is_string: bool, value: str, *, compact: bool, nullable: bool
    ) -> None:
        n = self.local("n")
        self.null_length(label, value, n, compact=compact, nullable=nullable)
        self.line("else:")
        if is_string:
            self.line(f" {value} = {value}.encode()")
        self.line(f" {n} = len({value})")
        if is_string:
            self.line(f" if {n} > {MAX_STRING_BYTES}: raise too_long({label}, {n})")
        if compact:
            self.line(f" {n} += 1")
        self.write_length(n, compact=compact, short=is_string)
        self.line(f"if {value}: {self.out} += {value}")

    def records(self, label: str, value: str, *, compact: bool, nullable: bool) -> None:
        if self.out != "out":
            raise TypeError(f"{label}: records inside a tagged field are not known")
        n, away = self.local("n"), self.local("r")
        one = " + 1" if compact else ""
        self.line(f"{away} = False")
        self.null_length(label, value, n, compact=compact, nullable=nullable)
        self.line(f"elif isinstance({value}, BYTES_LIKE):")
        self.line(f" {n} = len({value}){one}")
        self.line(f" {away} = {n} > {BY_REFERENCE_BYTES} and parts is not None")
        self.line("else:")
        self.line(f" {n} = payload_size({label}, {value}, parts){one}")
        self.line(f" {away} = True")
        self.write_length(n, compact=compact)
        self.line(f"if {away}:")
        self.line(" parts.append(out)")
        self.line(f" parts.append({value})")
        self.line(" out = bytearray()")
        self.line(f"elif {value}: out += {value}")

    def array(self, label: str, field: Field, value: str, *, compact: bool, nullable: bool) -> None:
        n = self.local("n")
        self.null_length(label, value, n, compact=compact, nullable=nullable)
        self.line(f"else: {n} = len({value}){' + 1' * compact}")
        self.write_length(n, compact=compact)
        fixed = FIXED.get(field.element)
        self.line(f"if {value}:")
        self.indent += 1
        if fixed is not None:
            count = f"{n} - 1" if compact else n
            code = fixed[0]
            repeated = f"{code!r} * ({count})" if len(code) > 1 else f"'%d{code}' % ({count})"
            if field.element == "uuid":
                self.line(f"for u in {value}:")
                self.line(f" if len(u) != 16: raise bad_uuid({label}, u)")
            self.line(f"{self.out} += pack('>' + {repeated}, *{value})")
        else:
            item = self.local("v")
            self.line(f"for {item} in {value}:")
            self.indent += 1
            if field.element == "struct":
                self.element(field.struct, item)
            else:
                is_string = field.element == "string"
                self.blob(label, is_string, item, compact=compact, nullable=False)
            if self.in_steps:
                self.line("w += 1")
                self.line(f"if not w & {STEP_ITEMS - 1}: yield")
            self.indent -= 1
        self.indent -= 1

    def element(self, cls: type[Struct], var: str) -> None:
        """Write a struct of a list. If all its fields without a fixed width may be empty, as in
        most responses they are, a fast path writes it with one `struct` call.
        """
        run: list[tuple[str, str]] = []
        conditions: list[str] = []
        tagged: list[str] = []
        for field in cls.FIELDS:
            source = f"{var}.{field.name}"
            compact = is_compact(self.message, field, self.version)
            if self.version not in field.versions:
                if not field.ignorable:
                    conditions.append(f"not {self.is_set(field, source)}")
            elif self.version in field.tagged:
                tagged.append(f"not {self.is_set(field, source)}")
            elif field.type_name in FIXED and field.type_name != "uuid":
                run.append((source, FIXED[field.type_name][0]))
            elif field.type_name == "array" and self.version not in field.nullable:
                conditions.append(f"{source} == []")
                run.append(("1", "B") if compact else ("0", "i"))
            elif field.type_name == "string" and self.version in field.nullable:
                conditions.append(f"{source} is None")
                run.append(("0", "B") if compact else ("-1", "h"))
            else:
                tagged = conditions = []
                break
        conditions += tagged
        if conditions:
            if self.version in self.message.FLEXIBLE:
                run.append(("", "x"))
            self.line(f"if {' and '.join(conditions)}: {self.out} += {self.packed(run)}")
            self.line("else:")
            self.indent += 1
        self.struct(cls, var)
        self.flush()
        self.indent -= bool(conditions)

    def struct_field(self, cls: type[Struct], field: Field, source: str) -> None:
        var = self.local("v")
        self.line(f"{var} = {source}")
        if self.version not in field.nullable:
            self.line(f"if {var} is None: raise null({self.label(cls, field)})")
            self.struct(field.struct, var)
            return
        self.flush()
        self.line(f"if {var} is None: {self.out} += b'\\xff'")
        self.line("else:")
        self.indent += 1
        self.pending.append(("1", "b"))
        self.struct(field.struct, var)
        self.flush()
        self.indent -= 1

    def tagged(self, cls: type[Struct], var: str, fields: list[Field]) -> None:
        """The tagged section: fields that differ from their default, in the order of their tags."""
        if not fields:
            self.pending.append(("", "x"))
            return
        fields = sorted(fields, key=lambda field: field.tag or 0)
        flags = []
        for field in fields:
            flag, value = self.local("f"), self.local("x")
            self.line(f"{value} = {var}.{field.name}")
            self.line(f"{flag} = {self.is_set(field, value)}")
            flags.append(flag)
        self.line(f"if {' or '.join(flags)}:")
        self.indent += 1
        run = list(self.pending)
        self.flush()
        self.line(f"{self.out} += uvarint({' + '.join(flags)})")
        for flag, field in zip(flags, fields, strict=True):
            self.line(f"if {flag}:")
            self.indent += 1
            outer, self.out = self.out, self.local("out")
            self.line(f"{self.out} = bytearray()")
            self.tagged_value(cls, field, f"{var}.{field.name}")
            self.flush()
            inner, self.out = self.out, outer
            tag = unsigned_varint(field.tag or 0)
            self.line(f"{outer} += {tag!r} + uvarint(len({inner}))")
            self.line(f"{outer} += {inner}")
            self.indent -= 1
        self.indent -= 1
        self.line(f"else: {self.out} += {self.packed([*run, ('', 'x')])}")

    def tagged_value(self, cls: type[Struct], field: Field, source: str) -> None:
        if field.type_name != "struct" or self.version not in field.nullable:
            self.field(cls, field, source)
            return
        var = self.local("v")
        self.line(f"{var} = {source}")
        self.line(f"if {var} is None: {self.out} += b'\\0'")
        self.line("else:")
        self.indent += 1
        self.line(f"{self.out} += b'\\1'")
        self.struct(field.struct, var)
        self.flush()
        self.indent -= 1
