"""The layered map against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.metadata.layered_map import SMALLEST_MELT, LayeredMap

KEYS = st.integers(0, 200)


@given(st.lists(st.dictionaries(KEYS, st.integers() | st.none(), max_size=40), max_size=30))
def test_equals_a_dict_that_is_changed_the_same_way(steps: list[dict[int, int | None]]) -> None:
    model: dict[int, int] = {}
    layered: LayeredMap[int, int] = LayeredMap()
    for changes in steps:
        before, kept = layered, dict(layered)
        layered = layered.changed(changes)
        for key, value in changes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        assert dict(before) == kept
        assert layered == model
        assert len(layered) == len(model) == len(list(layered))
        assert dict(layered.items()) == model
        assert all((key in layered) == (key in model) for key in range(201))


def test_no_changes_give_the_same_map() -> None:
    layered = LayeredMap({1: 2})
    assert layered.changed({}) is layered


def test_a_change_of_a_large_map_shares_its_base() -> None:
    large = LayeredMap(dict.fromkeys(range(10_000), 1))
    changed = large.changed({5: 2})
    assert changed._base is large._base
    for key in range(SMALLEST_MELT * 3):
        changed = changed.changed({key: 3})
    assert changed._base is not large._base
    assert changed[5] == 3
    assert large[5] == 1


def test_a_removed_key_raises_key_error_and_can_come_back() -> None:
    layered = LayeredMap({1: 2}).changed({1: None})
    assert layered.get(1) is None
    assert 1 not in layered
    assert layered.changed({1: 9})[1] == 9


def test_iteration_keeps_the_order_of_insertion() -> None:
    layered = LayeredMap({"b": 1, "a": 2}).changed({"c": 3}).changed({"b": 4})
    assert list(layered) == ["b", "a", "c"]


@given(
    st.dictionaries(KEYS, st.integers(), max_size=100),
    st.lists(st.dictionaries(KEYS, st.integers() | st.none(), max_size=40), max_size=4),
)
def test_changed_keys_are_those_that_differ(
    start: dict[int, int], steps: list[dict[int, int | None]]
) -> None:
    old = new = LayeredMap(start)
    for changes in steps:
        new = new.changed(changes)
    differing = {key for key in range(201) if new.get(key) is not old.get(key)}
    assert set(new.changed_keys(old)) == set(old.changed_keys(new)) == differing
