"""Finds the error codes in a response, at any level of its schema
(AbstractResponse.errorCounts).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from kbroker.protocol.codecs.schema import Field, Struct
from kbroker.protocol.errors import ErrorCode


def error_codes(value: Struct) -> Iterator[int]:
    """Every error code of a response and of its structs. Lists whose items have none are skipped.
    An item without any code, such as a topic without partitions, yields NONE: the distance to the
    next code is thus bounded, so that a long iteration can pause.
    """
    for field in _with_codes(type(value)):
        content = getattr(value, field.name)
        if field.type_name == "int16":
            yield content
        elif field.type_name == "struct":
            if content is not None:
                yield from error_codes(content)
        else:
            for item in content or ():
                has_code = False
                for code in error_codes(item):
                    has_code = True
                    yield code
                if not has_code:
                    yield ErrorCode.NONE


@cache
def _with_codes(kind: type[Struct]) -> tuple[Field, ...]:
    """The fields that are an error code, or have one in their structs."""
    return tuple(field for field in kind.FIELDS if _has_code(field))


def _has_code(field: Field) -> bool:
    if field.type_name == "int16":
        return field.name == "error_code"
    inner = field.element if field.type_name == "array" else field.type_name
    return inner == "struct" and bool(_with_codes(field.struct))
