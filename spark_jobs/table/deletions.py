"""Deletions of keys that may have an older value in a partition which is read later.

A deleted row leaves nothing in the table. Where partitions were added to a topic, a key's values
can be in one partition and its tombstone in another, and a table that catches up may read the
tombstone many batches before the values. So the deletions of a batch are kept in the output's
hidden folder, as changes of the batches behind it, until all that the brokers had then is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..archive.commits import STATE_FOLDER
from ..errors import JobError
from ..storage import Folder
from .changes import DELETED, IS_KEPT, KEY, PLACE, with_deletions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER: Final = f"{STATE_FOLDER}/deletions"
_COLUMNS: Final = (KEY, *PLACE)
_NOTE: Final = ".json"

Ends = Mapping[int, int]
"""Next offset by partition."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The deletions of a batch. name: of their folder, the number of the commit. until: when the
    table has read up to these offsets, no older value can come; empty where the brokers did not say
    yet.
    """

    name: str
    generation: int
    until: Ends


@dataclass(frozen=True, slots=True)
class Deletions:
    """Those that are kept of a topic's generation. output: the table's folder."""

    output: Folder
    generation: int

    def kept(self) -> list[Kept]:
        """Those of all batches and generations. Raises JobError if they can't be understood."""
        names = [name for name in self.output.names(FOLDER) if name.endswith(_NOTE)]
        return [self._read(name) for name in names]

    def added_to(self, changes: DataFrame, number: int) -> DataFrame:
        """Changes, with the kept deletions of their keys. number: of the commit that they are for;
        what a run that was killed kept for it is not read.
        """
        names = [
            each.name
            for each in self.kept()
            if each.generation == self.generation and each.name != _name(number)
        ]
        if not names:
            return changes
        paths = [self.output.child(f"{FOLDER}/{name}").spark_uri for name in names]
        reader = changes.sparkSession.read.schema(", ".join(map(str, _COLUMNS)))
        return with_deletions(changes, reader.parquet(*paths))

    def keep(self, newest: DataFrame, number: int, ends: Ends, latest: Ends | None) -> None:
        """Keep the deletions of a batch, before they are in the table. newest: as of
        `newest_of_each_key`. ends: of the batch. latest: of the topic after the batch was planned,
        empty where the brokers did not say; None where they can't be asked: nothing is kept then,
        as nothing would say for how long.
        """
        if latest is None or len(ends) < 2 or _is_reached(latest, ends):
            return
        deleted = newest.where(f"{DELETED} AND NOT {IS_KEPT}")
        if not deleted.head(1):
            return
        place = f"{FOLDER}/{_name(number)}"
        rows = deleted.select(*(column.name for column in _COLUMNS)).repartition(1)
        rows.write.mode("overwrite").parquet(self.output.child(place).spark_uri)
        self._note(Kept(_name(number), self.generation, latest))

    def drop(self, number: int, ends: Ends, latest: Ends | None) -> None:
        """Delete those that are not needed any more after a batch, which is in the table. number,
        ends: of its commit. latest: as of `keep`.
        """
        kept = {each.name: each for each in self.kept()}
        for each in kept.values():
            found = each if each.until or not latest else replace(each, until=latest)
            if each.generation < self.generation or _is_reached(found.until, ends):
                self.output.delete(f"{FOLDER}/{each.name}{_NOTE}")
                self.output.delete_folder(f"{FOLDER}/{each.name}")
            elif found != each:
                self._note(found)
        for name in self.output.names(FOLDER):  # of runs that were killed in between
            is_noted = name.removesuffix(_NOTE) in kept
            if not is_noted and name.isdecimal() and name <= _name(number):
                self.output.delete_folder(f"{FOLDER}/{name}")

    def _note(self, kept: Kept) -> None:
        values = {"generation": kept.generation, "until": dict(kept.until)}
        self.output.write(f"{FOLDER}/{kept.name}{_NOTE}", json.dumps(values).encode())

    def _read(self, name: str) -> Kept:
        content = self.output.read(f"{FOLDER}/{name}")
        try:
            values = json.loads(content or b"")
            until = {int(partition): int(offset) for partition, offset in values["until"].items()}
            return Kept(name.removesuffix(_NOTE), int(values["generation"]), until)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JobError(
                f"{self.output}/{FOLDER}/{name} is damaged ({error!r}): bring it back from a copy"
            ) from error


def _name(number: int) -> str:
    return f"{number:020d}"


def _is_reached(wanted: Ends, ends: Ends) -> bool:
    """Whether all of a topic was read up to these offsets; not if they are not known."""
    return bool(wanted) and all(ends.get(place, 0) >= offset for place, offset in wanted.items())
