"""What `groups-audit` prints: a block for each group, the stuck transactions, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from ..topic_checks import counted
from .transactions import StuckTransaction


@dataclass(frozen=True, slots=True)
class AuditPoint:
    """A commit. end: of the partition when it was committed, None if that is not known; lag: from
    the offset to there.
    """

    offset: int
    time_ms: int
    by: str
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class AuditedPartition:
    """Commits of a group for a partition, oldest first. count: those in the log. end, lag: now,
    None if the topic does not exist.
    """

    group: str
    topic: str
    partition: int
    count: int
    is_deleted: bool
    end: int | None
    lag: int | None
    points: tuple[AuditPoint, ...]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """stuck: transactions that should have ended. aborted: offsets of aborted transactions.
    notes: what a reader should know.
    """

    partitions: Sequence[AuditedPartition]
    stuck: Sequence[StuckTransaction]
    aborted: int = 0
    notes: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """1 if a transaction is stuck."""
        return 1 if self.stuck else 0

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)

    def to_text(self) -> str:
        """A block for each group, then the stuck transactions, the notes and a summary."""
        lines: list[str] = []
        group = None
        for each in self.partitions:
            if each.group != group:
                group = each.group
                lines.append(f"group {group}")
            lines += _lines(each)
        for one in self.stuck:
            name = one.transactional_id or f"producer {one.producer_id}"
            places = ", ".join(one.partitions[:5]) + (
                " and more" if len(one.partitions) > 5 else ""
            )
            lines.append(
                f"stuck: {name}, {one.state} since {_time(one.since_ms)}: {one.why} "
                f"({places or 'no partitions'})"
            )
        lines += [f"note: {note}" for note in self.notes]
        groups = counted(len({each.group for each in self.partitions}), "group")
        commits = counted(sum(each.count for each in self.partitions), "commit")
        stuck = counted(len(self.stuck), "stuck transaction")
        lines.append(f"{groups}, {commits} in the log, {self.aborted:,} aborted; {stuck}")
        return "\n".join(lines)


def _lines(each: AuditedPartition) -> list[str]:
    lag = "unknown" if each.lag is None else f"{each.lag:,}"
    gone = ", the offset is deleted now" if each.is_deleted else ""
    lines = [
        f"  {each.topic}-{each.partition}: {counted(each.count, 'commit')}, lag now {lag}{gone}"
    ]
    for point in each.points:
        then = "?" if point.lag is None else f"{point.lag:,}"
        lines.append(
            f"    {_time(point.time_ms)}  offset {point.offset}  lag {then}  by {point.by}"
        )
    return lines


def _time(time_ms: int) -> str:
    """In UTC; the number where it is no time before the year 10000, since clients send any."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
