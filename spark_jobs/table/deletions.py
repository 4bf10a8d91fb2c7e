"""Deletions of keys that may have an older value in a partition which is read later.

A deleted row leaves nothing in the table. Where partitions were added to a topic, a key's values
can be in one partition and its tombstone in another, and a table that catches up may read the
tombstone many batches before the values. So the deletions of a batch are kept in the output's
hidden folder, as changes of the batches behind it, until all that the brokers had then is read.
Each batch reads all that is kept, so many small folders become one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..archive.commits import STATE_FOLDER
from ..errors import JobError
from ..storage import Folder
from .changes import DELETED, IS_KEPT, KEY, PLACE, newest_in_partitions, with_deletions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER: Final = f"{STATE_FOLDER}/deletions"
_COLUMNS: Final = (KEY, *PLACE)
_NOTE: Final = ".json"
_LEVEL: Final = "-merged-"
MOST_FOLDERS: Final = 32
"""With more folders of one level than these, they are merged into one of the next level."""

Ends = Mapping[int, int]
"""Next offset by partition."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The deletions of a batch, or merged ones of several. name: of their folder, see `_name`.
    until: when the table has read up to these offsets, no older value can come; empty where the
    brokers did not say yet.
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
        return with_deletions(changes, self._rows(changes.sparkSession, names))

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
        self._write(deleted, Kept(_name(number), self.generation, latest))

    def drop(self, number: int, ends: Ends, latest: Ends | None) -> None:
        """Delete those that are not needed any more after a batch, which is in the table. number,
        ends: of its commit. latest: as of `keep`.
        """
        kept = {each.name: each for each in self.kept()}
        for each in kept.values():
            found = each if each.until or not latest else replace(each, until=latest)
            if each.generation < self.generation or _is_reached(found.until, ends):
                self._delete(each)
            elif found != each:
                self._note(found)
        for name in self.output.names(FOLDER):  # of runs that were killed in between
            is_noted = name.removesuffix(_NOTE) in kept
            is_folder = _LEVEL in name or name.isdecimal()
            if not is_noted and is_folder and name < _name(number + 1):
                self.output.delete_folder(f"{FOLDER}/{name}")

    def merge(self, spark: SparkSession, number: int, most: int = MOST_FOLDERS) -> None:
        """Make one folder of more than `most`, after `drop` for the same commit. Deletions of the
        batch itself are left out, as it may be run again.

        Merged ones are merged again only with as many others: what is merged is kept as long as the
        newest of it, so one folder for all would never go while a table stays far behind.
        """
        kept = [each for each in self.kept() if each.generation == self.generation]
        earlier = [each for each in kept if each.name < _name(number)]
        for level in sorted({_level(each.name) for each in earlier}):
            parts = [each for each in earlier if _level(each.name) == level]
            merged = _name(number, level + 1)
            if all(each.name != merged for each in kept):  # else a run was killed in between
                if len(parts) <= most:
                    continue
                rows = self._rows(spark, [each.name for each in parts])
                until = _all_of([each.until for each in parts])
                self._write(newest_in_partitions(rows), Kept(merged, self.generation, until))
            for each in parts:
                self._delete(each)

    def _rows(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        paths = [self.output.child(f"{FOLDER}/{name}").spark_uri for name in names]
        return spark.read.schema(", ".join(map(str, _COLUMNS))).parquet(*paths)

    def _write(self, deleted: DataFrame, kept: Kept) -> None:
        rows = deleted.select(*(column.name for column in _COLUMNS)).repartition(1)
        place = self.output.child(f"{FOLDER}/{kept.name}")
        rows.write.mode("overwrite").parquet(place.spark_uri)
        self._note(kept)

    def _delete(self, kept: Kept) -> None:
        self.output.delete(f"{FOLDER}/{kept.name}{_NOTE}")
        self.output.delete_folder(f"{FOLDER}/{kept.name}")

    def _note(self, kept: Kept) -> None:
        values = {"generation": kept.generation, "until": dict(kept.until)}
        self.output.write(f"{FOLDER}/{kept.name}{_NOTE}", json.dumps(values).encode())

    def _read(self, name: str) -> Kept:
        content = self.output.read(f"{FOLDER}/{name}")
        try:
            values = json.loads(content or b"")
            until = {int(partition): int(offset) for partition, offset in values["until"].items()}
            _level(name.removesuffix(_NOTE))  # a name that is not the job's
            return Kept(name.removesuffix(_NOTE), int(values["generation"]), until)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JobError(
                f"{self.output}/{FOLDER}/{name} is damaged ({error!r}): bring it back from a copy"
            ) from error


def _name(number: int, level: int = 0) -> str:
    """Of a folder. number: of the batch's commit, for merged ones of that after which they were
    merged. level: how often they were. Sorts by number.
    """
    return f"{number:020d}" + (f"{_LEVEL}{level}" if level else "")


def _level(name: str) -> int:
    return int(name.partition(_LEVEL)[2] or 0)


def _all_of(ends: Sequence[Ends]) -> Ends:
    """The highest offsets of all of these; empty if some are not known."""
    if not all(ends):
        return {}
    places = {place for each in ends for place in each}
    return {place: max(each.get(place, 0) for each in ends) for place in places}


def _is_reached(wanted: Ends, ends: Ends) -> bool:
    """Whether all of a topic was read up to these offsets; not if they are not known."""
    return bool(wanted) and all(ends.get(place, 0) >= offset for place, offset in wanted.items())
