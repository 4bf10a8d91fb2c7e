"""Each declaration against Kafka's own schema: field for field, version for version."""

from __future__ import annotations

import re
import subprocess
import sys
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.codecs.schema import (
    MISSING,
    Binary,
    Field,
    Message,
    Records,
    Struct,
    VersionRange,
)

PYTHON_TYPES: dict[str, object] = {
    "boolean": bool,
    "float64": float,
    "uuid": Uuid,
    "string": str,
    "bytes": Binary,
    "records": Records,
}

IGNORABLE_HERE = {("ElectLeadersResponse.error_code", "1+")}
"""Fields, with their versions, that are ignored in other versions, where Kafka's code looks at the
version before it sets them.
"""

Facts = dict[str, dict[str, Any]]
Declared = dict[str, type[Message]]


def snake(name: str) -> str:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def same_versions(declared: VersionRange, fact: str | None) -> bool:
    wanted = VersionRange(fact or "none")
    return (declared.low, declared.high) == (wanted.low, wanted.high)


def default_of(fact: dict[str, Any]) -> object:
    """The default Kafka's generator makes of a field; MISSING for an empty list or struct."""
    kind, default = fact["type"], fact.get("default")
    if default == "null" or (kind == "records" and default is None):
        return None
    if kind.startswith("[]") or kind[0].isupper():
        assert default is None
        return MISSING
    if kind == "bool":
        return default in (True, "true")
    if kind == "string":
        return default or ""
    if kind == "bytes":
        return b""
    if kind == "uuid":
        return ZERO_UUID
    if kind == "float64":
        return float(default or 0)
    return int(default, 0) if isinstance(default, str) else (default or 0)


def common_structs(fact: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {struct["name"]: struct["fields"] for struct in fact.get("commonStructs", [])}


def check_field(message: type[Message], fact: dict[str, Any], field: Field) -> None:
    where = f"{message.__name__}.{field.name}"
    kind = fact["type"]
    is_array = kind.startswith("[]")
    element = kind.removeprefix("[]")
    if element[0].isupper():
        assert field.struct_name == element, where
        assert field.struct is getattr(message, element), where
        element = "struct"
    element = {"bool": "boolean"}.get(element, element)
    assert field.name == snake(fact["name"]), where
    assert field.type_name == ("array" if is_array else element), where
    assert field.element == (element if is_array else ""), where
    assert same_versions(field.versions, fact.get("versions", fact.get("taggedVersions"))), where
    assert same_versions(field.nullable, fact.get("nullableVersions")), where
    assert same_versions(field.tagged, fact.get("taggedVersions")), where
    assert field.tag == fact.get("tag"), where
    is_ignorable_here = (where, fact.get("versions")) in IGNORABLE_HERE
    assert field.ignorable == (is_ignorable_here or fact.get("ignorable", False)), where
    assert field.default == default_of(fact), where
    assert type(field.default) is type(default_of(fact)), where
    if "flexibleVersions" in fact:
        assert field.flexible is not None, where
        assert same_versions(field.flexible, fact["flexibleVersions"]), where
    else:
        assert field.flexible is None, where


def check_annotation(owner: type[Struct], field: Field, annotation: Any) -> None:
    """The type a reader and mypy see says the same as the specifier behind it."""

    def plain(type_name: str) -> object:
        return field.struct if type_name == "struct" else PYTHON_TYPES.get(type_name, int)

    wanted: Any = plain(field.type_name)
    if field.type_name == "array":
        wanted = list[plain(field.element)]  # type: ignore[misc]  # built at run time
    nullable = field.nullable.low <= field.nullable.high or field.default is None
    if nullable:
        wanted = wanted | None
    if get_origin(annotation) is UnionType:
        assert (NoneType in get_args(annotation)) == nullable, f"{owner}.{field.name}"
    assert annotation == wanted, f"{owner}.{field.name}"


def check_struct(
    message: type[Message],
    owner: type[Struct],
    fields: list[dict[str, Any]],
    common: dict[str, list[dict[str, Any]]],
    seen: set[str],
) -> None:
    seen.add(owner.__name__)
    assert [field.name for field in owner.FIELDS] == [snake(fact["name"]) for fact in fields]
    hints = get_type_hints(owner)
    for fact, field in zip(fields, owner.FIELDS, strict=True):
        check_field(message, fact, field)
        check_annotation(owner, field, hints[field.name])
        if field.struct_name:
            inner = fact.get("fields") or common[field.struct_name]
            check_struct(message, field.struct, inner, common, seen)


def test_everything_kafka_has_is_declared_and_nothing_else(
    declared: Declared, schema_facts: Facts
) -> None:
    assert set(declared) == set(schema_facts)
    kinds = [message.KIND for message in declared.values()]
    assert kinds.count("request") == kinds.count("response") == 89
    assert kinds.count("coordinator-key") == kinds.count("coordinator-value") == 25


def test_declarations_equal_the_schemas(declared: Declared, schema_facts: Facts) -> None:
    for name, fact in schema_facts.items():
        message = declared[name]
        assert fact["type"] == message.KIND, name
        assert fact.get("apiKey", -1) == message.API_KEY, name
        assert same_versions(message.VERSIONS, fact["validVersions"]), name
        assert same_versions(message.FLEXIBLE, fact.get("flexibleVersions")), name
        assert list(message.LISTENERS) == fact.get("listeners", []), name
        assert fact.get("latestVersionUnstable", False) == message.LATEST_VERSION_UNSTABLE, name
        seen: set[str] = set()
        check_struct(message, message, fact["fields"], common_structs(fact), seen)
        nested = {key for key, value in vars(message).items() if isinstance(value, type)}
        assert nested == seen - {name}, name


def test_every_message_can_be_made_and_compared(declared: Declared) -> None:
    for message in declared.values():
        assert message() == message()
        for field in message.FIELDS:
            assert getattr(message(), field.name) == field.default_value()


@pytest.mark.parametrize("module", ["errors", "apis", "codecs.codec", "messages.fetch"])
def test_importing_one_module_imports_no_other_family(module: str) -> None:
    code = (
        f"import sys; import kbroker.protocol.{module}; "
        "print(*sorted(m for m in sys.modules if m.startswith('kbroker.protocol.messages.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wanted = "kbroker.protocol.messages.fetch" if module == "messages.fetch" else ""
    assert run.stdout.strip() == wanted
