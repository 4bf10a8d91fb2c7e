from __future__ import annotations

import pytest

from kbroker.model import ZERO_UUID, Uuid
from kbroker.protocol.codecs.schema import (
    MISSING,
    Data,
    Records,
    RecordsPayload,
    Struct,
    VersionRange,
    array,
    boolean,
    float64,
    int32,
    records,
    string,
    struct,
    uuid,
)
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest


class Everything(Data, api_key=7, versions="1-3", flexible="2+", listeners="broker controller"):
    class Inner(Struct):
        name: str = string("0+")
        siblings: list[Everything.Other] = array("Other", "0+")

    class Other(Struct):
        number: int = int32("0+", default=5)

    flag: bool = boolean("0+", default=True)
    ratio: float = float64("0+")
    topic_id: Uuid = uuid("0+")
    name: str | None = string("0+", nullable="1+", default=None)
    inner: Everything.Inner = struct("Inner", "0+")
    maybe: Everything.Inner | None = struct("Inner", "0+", nullable="0+", default=None)
    numbers: list[int] = array("int32", "0+")
    batches: Records | None = records("0+", nullable="0+")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        pytest.param("0+", [0, 1, 32767], [-1], id="0+"),
        pytest.param("3-5", [3, 4, 5], [2, 6], id="3-5"),
        pytest.param("4", [4], [3, 5], id="4"),
        pytest.param("none", [], [0, 1, 2], id="none"),
    ],
)
def test_version_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    versions = VersionRange(text)
    assert all(version in versions for version in inside)
    assert not any(version in versions for version in outside)
    assert str(versions) == text


def test_every_field_has_its_default() -> None:
    made = Everything()
    assert (made.flag, made.ratio, made.topic_id, made.name) == (True, 0.0, ZERO_UUID, None)
    assert (made.numbers, made.batches, made.maybe) == ([], None, None)
    assert made.inner == Everything.Inner(name="", siblings=[])
    assert Everything.Other().number == 5


def test_mutable_defaults_are_not_shared() -> None:
    first, second = Everything(), Everything()
    first.numbers.append(1)
    first.inner.name = "first"
    assert second == Everything()


def test_the_constructor_takes_known_keywords_only() -> None:
    assert Everything(numbers=[1, 2]).numbers == [1, 2]
    with pytest.raises(TypeError):
        Everything(unknown=1)  # type: ignore[call-arg]  # is what is tested
    with pytest.raises(TypeError):
        Everything(True)  # type: ignore[call-arg]  # is what is tested


def test_an_explicit_none_is_not_replaced_by_the_default() -> None:
    assert Everything(numbers=None).numbers is None  # type: ignore[arg-type]  # is what is tested


def test_instances_have_slots() -> None:
    made = Everything()
    with pytest.raises(AttributeError):
        made.unknown = 1  # type: ignore[attr-defined]  # is what is tested
    assert not hasattr(made, "__dict__")
    assert not hasattr(made.inner, "__dict__")


def test_equality_is_by_class_and_fields() -> None:
    assert Everything(numbers=[1]) == Everything(numbers=[1])
    assert Everything(numbers=[1]) != Everything(numbers=[2])
    assert Everything.Other() != Everything.Inner()
    assert Everything(batches=memoryview(b"ab")) == Everything(batches=b"ab")
    with pytest.raises(TypeError):
        hash(Everything())


def test_repr_names_the_fields() -> None:
    assert repr(Everything.Inner(name="x")) == "Inner(name='x', siblings=[])"


def test_the_class_knows_its_declaration() -> None:
    assert (Everything.API_KEY, Everything.KIND) == (7, "data")
    assert (str(Everything.VERSIONS), str(Everything.FLEXIBLE)) == ("1-3", "2+")
    assert Everything.LISTENERS == ("broker", "controller")
    inner = next(field for field in Everything.FIELDS if field.name == "inner")
    assert inner.struct is Everything.Inner
    assert inner.default is MISSING
    assert repr(MISSING) == "MISSING"
    assert "inner" in repr(inner)
    assert Everything.Inner.FIELDS[1].struct is Everything.Other


def test_a_misspelt_struct_fails_at_import() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.items: Wrong has no struct Itme"):

        class Wrong(Data, versions="0"):
            items: list[object] = array("Itme", "0+")


def test_structs_of_one_message_are_no_structs_of_another() -> None:
    assert set(vars(FetchRequest)) >= {"FetchTopic", "FetchPartition", "ForgottenTopic"}
    assert "FetchTopic" not in vars(ProduceRequest)


def test_anything_with_a_size_is_a_payload() -> None:
    class Slice:
        size = 10

    assert isinstance(Slice(), RecordsPayload)
    assert not isinstance(b"bytes", RecordsPayload)
