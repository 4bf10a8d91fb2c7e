"""What `verify` found, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .facts import PartitionFacts


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """findings: empty if all is well. topic, copy: facts of both sides, copy empty without one.
    notes: what a reader should know.
    """

    topic: Sequence[PartitionFacts]
    copy: Sequence[PartitionFacts]
    findings: Sequence[str]
    notes: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """1 if anything differs."""
        return 1 if self.findings else 0

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {**asdict(self), "is_equal": not self.findings}

    def to_text(self) -> str:
        """A line for each partition of the topic, the notes, the findings, and a summary."""
        lines = [_line(facts) for facts in self.topic]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"finding: {finding}" for finding in self.findings]
        records = sum(facts.compared for facts in self.topic)
        if self.findings:
            lines.append(f"{len(self.findings)} findings in {records} records")
        elif self.copy:
            lines.append(f"the same {records} records on both sides")
        else:
            lines.append(f"{records} records, nothing is missing")
        return "\n".join(lines)


def _line(facts: PartitionFacts) -> str:
    counts = [f"{facts.records} records"]
    for name in ("markers", "aborted", "compacted"):
        if number := getattr(facts, name):
            counts.append(f"{number} {name}")
    if facts.older:
        counts.append(f"the oldest {facts.older} not compared")
    shown = ", ".join(counts)
    return f"{facts}: offsets {facts.start} to {facts.end}, {shown}, hash {facts.ordered}"
