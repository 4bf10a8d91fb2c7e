"""What a batch leaves for the next one: a manifest, and the folders of Parquet that it names.

`state-N` in the checkpoint's folder belongs to `query-N`. A manifest appears whole or not at all,
and after its folders; the state of batch n depends on that of batch n - 1 and on the records of
batch n, which Spark's checkpoint fixes. So a batch that is begun again may take the state
that it has left.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Final

from ..checkpoint import Offsets, format_offsets, parse_offsets
from ..errors import JobError
from ..storage import Folder
from .watermarks import NO_WATERMARK

FORMAT: Final = 1
KEPT: Final = 2
"""Manifests: the newest, and the one before it, from which its batch may have to be made again."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of a batch: read, late, not written because an earlier one has their id, and without
    an id.
    """

    read: int = 0
    late: int = 0
    duplicates: int = 0
    without_id: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.late + other.late,
            self.duplicates + other.duplicates,
            self.without_id + other.without_id,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of Parquet. newest_ms: no row of it has a later time."""

    folder: str
    newest_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """What a batch has left. rule: how it was made, in words; another rule cannot go on with it.
    end: of the batch in its source. watermark_ms: behind the batch.
    """

    batch_id: int
    rule: str
    end: Offsets
    watermark_ms: int = NO_WATERMARK
    parts: tuple[Part, ...] = ()
    counts: Counts = field(default_factory=Counts)

    def to_json(self) -> bytes:
        """The manifest."""
        values = asdict(self) | {"format": FORMAT, "end": format_offsets(self.end)}
        return json.dumps(values, indent=1).encode()


def parse_state(content: bytes) -> State:
    """A state from its manifest. Raises ValueError, KeyError or TypeError."""
    values = json.loads(content)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']} of a newer version")
    return State(
        int(values["batch_id"]),
        str(values["rule"]),
        parse_offsets(values["end"]),
        int(values["watermark_ms"]),
        tuple(Part(str(each["folder"]), int(each["newest_ms"])) for each in values["parts"]),
        Counts(**values["counts"]),
    )


@dataclass(frozen=True, slots=True)
class StateLog:
    """The states of a query. Every method raises JobError where the folder cannot be used."""

    folder: Folder

    def new_folder(self, batch_id: int) -> str:
        """A name that no part has."""
        return f"{batch_id}-{uuid.uuid4().hex[:12]}"

    def read(self, batch_id: int) -> State | None:
        """The state of a batch; None if there is none."""
        name = _name(batch_id)
        try:
            content = self.folder.read(name)
        except OSError as error:
            raise JobError(f"{self.folder} cannot be read: {error.strerror or error}") from error
        if content is None:
            return None
        try:
            return parse_state(content)
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{self.folder}/{name} is damaged ({error!r}): bring it back from a copy, or give "
                "--resume-from output, which begins with an empty state"
            ) from error

    def before(self, batch_id: int) -> State | None:
        """The state that a batch goes on with; None for the first batch."""
        if not batch_id:
            return None
        state = self.read(batch_id - 1)
        if state is None:
            raise JobError(
                f"{self.folder} has no state of batch {batch_id - 1}: bring it back from a copy, "
                "or give --resume-from output, which begins with an empty state"
            )
        return state

    def newest(self) -> State | None:
        """The newest state; None before the first batch."""
        numbers = self._numbers()
        return self.read(numbers[-1]) if numbers else None

    def write(self, state: State) -> None:
        """Keep a state whose folders are written, and remove what no batch needs any more."""
        try:
            self.folder.write(_name(state.batch_id), state.to_json())
            self._remove_old(state)
        except OSError as error:
            raise JobError(f"{self.folder} cannot be written: {error.strerror or error}") from error

    def _remove_old(self, newest: State) -> None:
        numbers = [number for number in self._numbers() if number <= newest.batch_id]
        for number in numbers[:-KEPT]:
            self.folder.delete(_name(number))
        kept = [self.read(number) for number in numbers[-KEPT:]]
        named = {part.folder for state in kept if state is not None for part in state.parts}
        for name in self.folder.names():
            if not name.endswith(".json") and not name.startswith(".") and name not in named:
                self.folder.delete_folder(name)

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.folder.names() if "." in name)
        return sorted(int(name) for name in names if name.isdecimal())


def _name(batch_id: int) -> str:
    return f"{batch_id:012d}.json"
