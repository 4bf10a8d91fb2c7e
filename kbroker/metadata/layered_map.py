"""An immutable mapping whose changed copies share most of their entries with it. It makes changes
to an image of 10,000 topics cheap.

A map consists of a large base dict, which is never written after construction, and a small dict of
changes over it. A changed copy copies the changes only. Once they have grown past the square root
of the whole, both are merged into a new base. Unlike a hash trie, the map keeps insertion order, so
iteration does not depend on the hash seed.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SMALLEST_MELT: Final = 64


class _Removed:
    """Marks a removed key in the changes."""

    __slots__ = ()


_REMOVED: Final = _Removed()


class LayeredMap(Mapping[K, V], Generic[K, V]):
    """See the module. Read it as any Mapping; `changed` is the only way to a different one."""

    __slots__ = ("_base", "_changes", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._base: dict[K, V] = dict(entries) if entries else {}
        self._changes: dict[K, V | _Removed] = {}
        self._size = len(self._base)

    def changed(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """A map with these entries set, or removed where the value is None. Cost: len(changes) plus
        a small overlay.
        """
        if not changes:
            return self
        result: LayeredMap[K, V] = LayeredMap()
        overlay = dict(self._changes)
        size = self._size
        for key, value in changes.items():
            present = key in self
            if value is not None:
                overlay[key] = value
                size += not present
            elif present:
                size -= 1
                if key in self._base:
                    overlay[key] = _REMOVED
                else:
                    overlay.pop(key, None)
        result._base, result._changes, result._size = self._base, overlay, size
        if len(overlay) > SMALLEST_MELT and len(overlay) ** 2 > len(self._base):
            merged = {**self._base, **overlay}  # in the order in which `result` is iterated
            result._base = {k: v for k, v in merged.items() if not isinstance(v, _Removed)}
            result._changes = {}
        return result

    def changed_keys(self, old: LayeredMap[K, V]) -> list[K]:
        """Keys whose values are not the identical objects in both maps. Maps with the same base
        are compared by their changes only.
        """
        if self is old:
            return []
        if self._base is old._base:
            keys: Iterable[K] = {**old._changes, **self._changes}
        else:
            keys = {**dict.fromkeys(old), **dict.fromkeys(self)}
        return [key for key in keys if self.get(key) is not old.get(key)]

    def __getitem__(self, key: K) -> V:
        value = self._changes.get(key)
        if value is None:
            return self._base[key]
        if value is _REMOVED:
            raise KeyError(key)
        return value  # type: ignore[return-value]  # mypy does not narrow a sentinel

    def __contains__(self, key: object) -> bool:
        if key in self._changes:
            return self._changes[key] is not _REMOVED
        return key in self._base

    def __iter__(self) -> Iterator[K]:
        changes = self._changes
        if not changes:
            yield from self._base
            return
        for key in self._base:
            if changes.get(key) is not _REMOVED:
                yield key
        for key, value in changes.items():
            if key not in self._base and value is not _REMOVED:
                yield key

    def items(self) -> ItemsView[K, V]:
        """As dict.items; a view of the base itself while there are no changes."""
        return self._base.items() if not self._changes else super().items()

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"LayeredMap({dict(self.items())!r})"
