"""What a run of `restore` or `replay` did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..topic_checks import counted


@dataclass(frozen=True, slots=True)
class CopyReport:
    """rows, batches: of this run. end_offsets: next offsets of the source, by partition.
    are_offsets_kept: whether records have the offsets that they had; otherwise
    `__spark_offsets` has the offset map. is_whole: whether the end was reached.
    """

    job: str
    source: str
    target: str
    rows: int
    batches: int
    end_offsets: Mapping[int, int]
    are_offsets_kept: bool
    is_whole: bool
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rows": self.rows,
            "batches": self.batches,
            "end_offsets": dict(self.end_offsets),
            "are_offsets_kept": self.are_offsets_kept,
            "is_whole": self.is_whole,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        how = "offsets kept" if self.are_offsets_kept else "with an offset map"
        rest = "" if self.is_whole else "; stopped before the end, the next run goes on"
        verb = "restored" if self.job == "restore" else "replayed"
        return (
            f"{verb} {counted(self.rows, 'record')} of {self.source} to {self.target} in "
            f"{counted(self.batches, 'batch')}, {how}{rest}"
        )
