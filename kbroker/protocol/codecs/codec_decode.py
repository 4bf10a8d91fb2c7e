"""Compiles a declaration into the decoding function of one version. Used by `codec` only.

The generated function is `decode(buf, p) -> (message, p)`: `buf` a memoryview, `p` a position. In
it

    v0 = new(C0)
    v0.cluster_id = None  # defaults of tagged fields, and of what the version lacks
    v0.max_wait_ms, v0.min_bytes, ..., n1, = u1(buf, p)  # widths in a run, a varint's first byte
    p += 22
    if n1 > 127: n1, p = more(buf, p, n1)
    ...

An IndexError or struct.error inside it means that the bytes ended too early.

With `in_steps` it is a generator `decode(buf, p, made)` that returns the same pair and yields after
every `STEP_ITEMS` list items, which bounds the work between two yields however many items a request
has. It appends the message to `made` before it reads a field. Each struct is put into its place
before its fields are read, so what was read of a message that is none can be freed in steps, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct as Layout
from struct import error as StructError
from struct import unpack_from
from typing import Any, Final

from kbroker.protocol.codecs.primitives import (
    continue_unsigned_varint,
    read_unsigned_varint,
    skip_tagged_fields,
)
from kbroker.protocol.codecs.schema import MISSING, Field, Message, Struct
from kbroker.protocol.errors import BufferUnderflow, MalformedRequest

FIXED: Final[Mapping[str, tuple[str, int]]] = {
    "boolean": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""struct format and width of each fixed-width primitive."""

MAX_STRING_BYTES: Final = 0x7FFF

STEP_ITEMS: Final = 128
"""List items between two yields, a power of two: some 0.1 ms."""


def is_compact(message: type[Message], field: Field, version: int) -> bool:
    """Whether the field's length is encoded as a varint of length + 1."""
    return version in message.FLEXIBLE and (field.flexible is None or version in field.flexible)


def minimum_size(message: type[Message], struct: type[Struct], version: int) -> int:
    """The smallest size of a struct: a count is checked against it before a list is filled."""
    size = 1 if version in message.FLEXIBLE else 0
    for field in struct.FIELDS:
        if version not in field.versions or version in field.tagged:
            continue
        if field.type_name in FIXED:
            size += FIXED[field.type_name][1]
        elif field.type_name == "struct":
            nullable = version in field.nullable
            size += 1 if nullable else minimum_size(message, field.struct, version)
        elif is_compact(message, field, version):
            size += 1
        else:
            size += 2 if field.type_name == "string" else 4
    return size


def underflow(name: str, size: int, position: int, end: int) -> BufferUnderflow:
    return BufferUnderflow(f"{name}: {size} bytes wanted at {position}, {end - position} left")


def null(name: str) -> MalformedRequest:
    return MalformedRequest(f"{name}: null where no null may be")


def bad_length(name: str, size: int) -> MalformedRequest:
    return MalformedRequest(f"{name}: length {size}")


def tag_size(name: str, size: int, taken: int) -> MalformedRequest:
    return MalformedRequest(f"{name}: tagged field of {size} bytes took {taken}")


# Any: a Decoder or, with `in_steps`, a StepDecoder
def compile_decoder(message: type[Message], version: int, *, in_steps: bool = False) -> Any:
    """Write, compile and return the decoding function of one message in one version."""
    writer = _DecoderWriter(message, version, in_steps=in_steps)
    scope = writer.scope
    exec(compile(writer.source(), f"<decode {message.__name__} v{version}>", "exec"), scope)
    return scope["decode"]


class _DecoderWriter:
    """Writes the source. `pending`: the fixed-width reads not yet put into a struct call."""

    __slots__ = ("counter", "in_steps", "indent", "lines", "message", "pending", "scope", "version")

    def __init__(self, message: type[Message], version: int, *, in_steps: bool) -> None:
        self.in_steps = in_steps
        self.message = message
        self.version = version
        self.lines: list[str] = []
        self.indent = 2
        self.pending: list[tuple[str, str]] = []
        self.counter = 0
        self.scope: dict[str, Any] = {
            "new": object.__new__,
            "unpack_from": unpack_from,
            "more": continue_unsigned_varint,
            "varint": read_unsigned_varint,
            "skip": skip_tagged_fields,
            "underflow": underflow,
            "null": null,
            "bad_length": bad_length,
            "tag_size": tag_size,
            "StructError": StructError,
            "BufferUnderflow": BufferUnderflow,
            "MalformedRequest": MalformedRequest,
        }

    def source(self) -> str:
        name = f"{self.message.__name__} v{self.version}"
        self.struct(self.message, "v0", "made.append(v0)" if self.in_steps else "")
        self.flush()
        body = "\n".join(self.lines)
        return (
            f"def decode(buf, p{', made' if self.in_steps else ''}):\n"
            f" end = len(buf)\n{' w = 0' if self.in_steps else ''}\n"
            f" try:\n{self.first_step()}{body}\n  return v0, p\n"
            f" except (IndexError, StructError):\n"
            f"  raise BufferUnderflow(f'{name}: the bytes end early, {{end}} at hand') from None\n"
            f" except UnicodeDecodeError as error:\n"
            f"  raise MalformedRequest(f'{name}: a string is not UTF-8: {{error}}') from None\n"
        )

    def first_step(self) -> str:
        """A yield in every generator, so that a function without lists is a generator too."""
        return "  yield\n" if self.in_steps else ""

    def item_done(self) -> None:
        """The end of a loop's body: yields after every STEP_ITEMS items."""
        if self.in_steps:
            self.line("w += 1")
            self.line(f"if not w & {STEP_ITEMS - 1}: yield")

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

    def flush(self) -> None:
        """Put the pending run into one struct call."""
        if not self.pending:
            return
        layout = Layout(">" + "".join(code for _, code in self.pending))
        targets = ", ".join(target for target, _ in self.pending)
        if layout.format == ">B":
            self.line(f"{targets} = buf[p]")
            self.line("p += 1")
        else:
            unpack = self.bind("u", layout.unpack_from)
            self.line(f"{targets}, = {unpack}(buf, p)")
            self.line(f"p += {layout.size}")
        self.pending.clear()

    def label(self, owner: type[Struct], field: Field) -> str:
        return repr(f"{owner.__qualname__}.{field.name}")

    def struct(self, cls: type[Struct], var: str, place: str) -> None:
        """Read a struct into the new local `var`. place: a statement that stores it, executed
        first. May leave reads pending.
        """
        self.line(f"{var} = new({self.bind('C', cls)})")
        if place:
            self.line(place)
        tagged: list[Field] = []
        present: list[Field] = []
        for field in cls.FIELDS:
            if self.version in field.tagged:
                tagged.append(field)
            elif self.version in field.versions:
                present.append(field)
                continue
            self.default(field, f"{var}.{field.name}")
        for field in present:
            self.field(cls, field, f"{var}.{field.name}")
        if self.version in self.message.FLEXIBLE:
            self.tagged(cls, var, tagged)

    def default(self, field: Field, target: str) -> None:
        if field.default is MISSING:
            if field.type_name == "array":
                self.line(f"{target} = []")
            else:
                fresh = self.local("v")
                self.line(f"{target} = {fresh} = new({self.bind('C', field.struct)})")
                for child in field.struct.FIELDS:
                    self.default(child, f"{fresh}.{child.name}")
        elif field.default is None or isinstance(field.default, bool | int | str):
            self.line(f"{target} = {field.default!r}")
        else:
            self.line(f"{target} = {self.bind('d', field.default)}")

    def field(self, cls: type[Struct], field: Field, target: str) -> None:
        label = self.label(cls, field)
        if field.type_name in FIXED:
            self.pending.append((target, FIXED[field.type_name][0]))
        elif field.type_name == "struct":
            self.struct_field(field, target)
        else:
            nullable = self.version in field.nullable
            compact = is_compact(self.message, field, self.version)
            length = self.length(label, field.type_name == "string", nullable, compact, target)
            if field.type_name == "array":
                self.array(label, field, target, length)
            else:
                self.blob(label, field.type_name == "string", target, length)
            self.indent -= 1

    def more(self, n: str, inline: bool) -> None:
        """Read the rest of a varint whose first byte, in `n`, was not its last; two bytes need no
        call.
        """
        if not inline:
            self.line(f"if {n} > 127: {n}, p = more(buf, p, {n})")
            return
        self.line(f"if {n} > 127:")
        self.line(" b = buf[p]")
        self.line(f" if b > 127: {n}, p = more(buf, p, {n})")
        self.line(" else:")
        self.line(f"  {n} += (b << 7) - 128")
        self.line("  p += 1")

    def length(self, label: str, short: bool, nullable: bool, compact: bool, target: str) -> str:
        """Read a length, handle null, and open the `else:` for a length of 0 or more."""
        n = self.local("n")
        if compact:
            self.pending.append((n, "B"))
            self.flush()
            self.more(n, inline=not short)
            self.line(f"{n} -= 1")
            self.line(f"if {n} < 0:")
            self.line(f" {target} = None" if nullable else f" raise null({label})")
            if short:
                self.line(f"elif {n} > {MAX_STRING_BYTES}: raise bad_length({label}, {n})")
        else:
            self.pending.append((n, "h" if short else "i"))
            self.flush()
            self.line(f"if {n} < 0:")
            self.line(f" if {n} != -1: raise bad_length({label}, {n})")
            self.line(f" {target} = None" if nullable else f" raise null({label})")
        self.line("else:")
        self.indent += 1
        return n

    def blob(self, label: str, is_string: bool, target: str, length: str) -> None:
        self.line(f"e = p + {length}")
        self.line(f"if e > end: raise underflow({label}, {length}, p, end)")
        self.line(f"{target} = str(buf[p:e], 'utf-8')" if is_string else f"{target} = buf[p:e]")
        self.line("p = e")

    def array(self, label: str, field: Field, target: str, count: str) -> None:
        fixed = FIXED.get(field.element)
        if fixed is not None:
            code, width = fixed
            self.line(f"e = p + {count} * {width}")
            self.line(f"if e > end: raise underflow({label}, {count} * {width}, p, end)")
            repeated = f"{code!r} * {count}" if len(code) > 1 else f"'%d{code}' % {count}"
            self.line(f"{target} = list(unpack_from('>' + {repeated}, buf, p))")
            self.line("p = e")
            return
        compact = is_compact(self.message, field, self.version)
        if field.element == "struct":
            least = max(1, minimum_size(self.message, field.struct, self.version))
        else:
            least = 1 if compact else 2
        items, item = self.local("a"), self.local("v")
        wanted = count if least == 1 else f"{count} * {least}"
        self.line(f"if {wanted} > end - p: raise underflow({label}, {wanted}, p, end)")
        self.line(f"{target} = {items} = []")
        if field.element == "struct" and self.all_fixed(field.struct):
            self.fixed_structs(field.struct, items, count, least)
            count = f"{count} - len({items})"
        self.line(f"for _ in range({count}):")
        self.indent += 1
        if field.element == "struct":
            self.struct(field.struct, item, f"{items}.append({item})")
            self.flush()
        else:
            if field.element != "string" and field.element != "bytes":
                raise TypeError(f"{label}: arrays of {field.element} are not known")
            length = self.length(label, field.element == "string", False, compact, item)
            self.blob(label, field.element == "string", item, length)
            self.indent -= 1
            self.line(f"{items}.append({item})")
        self.item_done()
        self.indent -= 1

    def all_fixed(self, struct: type[Struct]) -> bool:
        """Whether every element has the same width, except for tagged fields."""
        present = [field for field in struct.FIELDS if self.is_plain(field)]
        return bool(present) and all(field.type_name in FIXED for field in present)

    def is_plain(self, field: Field) -> bool:
        return self.version in field.versions and self.version not in field.tagged

    def fixed_structs(self, struct: type[Struct], items: str, count: str, size: int) -> None:
        """Read structs of one width in one pass, up to the first that has tagged fields.

        The general loop, which is generated after this one, continues from there.
        """
        flexible = self.version in self.message.FLEXIBLE
        plain = [field for field in struct.FIELDS if self.is_plain(field)]
        codes = "".join(FIXED[field.type_name][0] for field in plain) + "B" * flexible
        values = [self.local("x") for _ in plain]
        count_of_tags = ["t"] if flexible else []
        unpack = self.bind("u", Layout(">" + codes).iter_unpack)
        item = self.local("v")
        self.line(
            f"for {', '.join(values + count_of_tags)}, in {unpack}(buf[p:p + {count} * {size}]):"
        )
        self.indent += 1
        if flexible:
            self.line("if t: break")
        self.line(f"{item} = new({self.bind('C', struct)})")
        for field in struct.FIELDS:
            if field not in plain:
                self.default(field, f"{item}.{field.name}")
        for field, value in zip(plain, values, strict=True):
            self.line(f"{item}.{field.name} = {value}")
        self.line(f"{items}.append({item})")
        self.item_done()
        self.indent -= 1
        self.line(f"p += len({items}) * {size}")

    def struct_field(self, field: Field, target: str) -> None:
        """A struct inside a struct. A nullable one begins with a byte: below 0 for null."""
        var = self.local("v")
        if self.version not in field.nullable:
            self.struct(field.struct, var, f"{target} = {var}")
            return
        n = self.local("n")
        self.pending.append((n, "b"))
        self.flush()
        self.line(f"if {n} < 0: {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(field.struct, var, f"{target} = {var}")
        self.flush()
        self.indent -= 1

    def tagged(self, cls: type[Struct], var: str, fields: list[Field]) -> None:
        """The tagged section: a count, then tag, size and value each. Unknown tags are skipped."""
        count = self.local("n")
        self.pending.append((count, "B"))
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        self.line(f"if {count} > 127: {count}, p = more(buf, p, {count})")
        if not fields:
            self.line(f"p = skip(buf, p, {count})")
            self.indent -= 1
            return
        tag, size, stop = self.local("t"), self.local("s"), self.local("e")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        for n in (tag, size):
            self.line(f"{n} = buf[p]")
            self.line("p += 1")
            self.line(f"if {n} > 127: {n}, p = more(buf, p, {n})")
        self.line(f"{stop} = p + {size}")
        label = repr(cls.__qualname__)
        self.line(f"if {stop} > end: raise underflow({label} + ' tag', {size}, p, end)")
        for number, field in enumerate(fields):
            self.line(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            self.tagged_value(cls, field, f"{var}.{field.name}")
            self.flush()
            self.indent -= 1
        self.line("else:")
        self.line(f" p = {stop}")
        taken = f"p - {stop} + {size}"
        self.line(f"if p != {stop}: raise tag_size({label}, {size}, {taken})")
        self.item_done()
        self.indent -= 2

    def tagged_value(self, cls: type[Struct], field: Field, target: str) -> None:
        """A value in a tagged field; here a nullable struct begins with a varint, 0 for null."""
        if field.type_name != "struct" or self.version not in field.nullable:
            self.field(cls, field, target)
            return
        n, var = self.local("n"), self.local("v")
        self.line(f"{n}, p = varint(buf, p)")
        self.line(f"if {n} == 0: {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(field.struct, var, f"{target} = {var}")
        self.flush()
        self.indent -= 1
