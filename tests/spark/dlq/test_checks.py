"""Whether a record can be used. Bytes from outside never raise anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.decoding.decoder import AvroDecoder, Decoder, JsonDecoder, TextDecoder
from spark_jobs.decoding.types import array
from spark_jobs.dlq.checks import Checks
from tests.spark.decoding.test_json_schema import ORDER

DECODERS = (TextDecoder(), JsonDecoder(), JsonDecoder(ORDER), AvroDecoder(('"string"',)))

JSON = Checks(1_000_000, decoder=JsonDecoder())


def message(checks: Checks, value: bytes | None, key: bytes | None = b"k") -> str | None:
    found = checks.problem(key, value, ())
    return None if found is None else found.message


def test_size() -> None:
    checks = Checks(200)
    assert checks.problem(b"k" * 50, b"v" * 50, ()) is None
    assert checks.problem(b"k" * 10, None, ()) is None
    for key, value, headers in (
        (b"k" * 50, b"v" * 100, ()),
        (None, b"v" * 50, ((b"name", b"x" * 100),)),
    ):
        found = checks.problem(key, value, headers)
        assert found is not None
        assert (found.stage, found.exception.rpartition(".")[2]) == (
            "TASK_PUT",
            "RecordTooLargeException",
        )


def test_a_key_that_is_needed() -> None:
    found = Checks(1000, requires_key=True).problem(None, b"v", ())
    assert found is not None and found.stage == "KEY_CONVERTER"
    assert Checks(1000, requires_key=True).problem(b"", b"v", ()) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b'{"a": 1}', None),
        (None, None),
        (b"", "the value is no JSON: Expecting value"),
        (b"{", "the value is no JSON"),
        (b"NaN", "NaN is no number of JSON"),
        (b"\xff{}", "no UTF-8: byte 0 is 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "the value is no JSON"),
    ],
)
def test_json(value: bytes | None, problem: str | None) -> None:
    found = message(JSON, value)
    if problem is None:
        assert found is None
    else:
        assert found is not None and problem in found


def test_strings_and_schemas() -> None:
    assert message(Checks(1000, decoder=TextDecoder()), b"{") is None
    assert message(Checks(1000, decoder=TextDecoder()), b"\x80") is not None
    orders = Checks(1000, decoder=JsonDecoder(ORDER))
    assert message(orders, b'{"id": 4}') is None
    assert message(orders, b'{"id": "4"}') == "id is string, not long"
    for kind in ("float", "double"):
        numbers = Checks(1000, decoder=JsonDecoder(array(kind)))
        assert message(numbers, b"[" + b"9" * 300 + b"]") is None
        found = message(numbers, b"[1, " + b"9" * 400 + b"]")
        assert found == f"[1] is out of the range of {kind}"


@given(st.binary(max_size=60), st.sampled_from([None, *DECODERS]))
def test_any_bytes(value: bytes, decoder: Decoder | None) -> None:
    found = Checks(1000, decoder=decoder).problem(None, value, ())
    assert found is None or found.message
