"""Messages out of descriptor sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.decoding.descriptors import Types, parse_descriptors
from spark_jobs.decoding.errors import SchemaProblem
from tests.spark.decoding.protobuf_bytes import shop


def test_messages_by_their_names() -> None:
    types = parse_descriptors(shop())
    assert types.message(".shop.Order") is types.message("shop.Order") is types.message("Order")
    assert types.message("shop.Order.CountsEntry").is_map_entry
    assert types.enums["shop.State"] == {0: "NEW", 1: "PAID", -1: "LOST"}
    with pytest.raises(SchemaProblem, match=r"no message Bill: there is google\.protobuf"):
        types.message("Bill")
    with pytest.raises(SchemaProblem, match="there is no message a: there is none"):
        Types().message("a")


@pytest.mark.parametrize("content", [b"\x0a\x05a", b"no descriptors"])
def test_what_is_no_descriptor_set(content: bytes) -> None:
    with pytest.raises(SchemaProblem, match="it is no descriptor set"):
        parse_descriptors(content)


@given(st.binary(max_size=60))
def test_any_bytes(content: bytes) -> None:
    try:
        parse_descriptors(content)
    except SchemaProblem as error:
        assert str(error)
