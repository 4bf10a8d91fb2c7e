"""What transactions said of themselves, held against what a reader of committed records saw.

Every input is appended to two lists, that of its key and that of its worker, in one transaction:
`anomalies` names an input that is missing, doubled or out of order in a list, a record of an
aborted or unknown transaction, a committed one that is not there, one that is there in part, and
transactions of one worker in another order than their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

KEYS: Final = 7

Place = tuple[str, int]
"""Topic and partition."""


class Seen(NamedTuple):
    """One record: the list it was appended to, the input's number, the transaction's name."""

    key: str
    number: int
    attempt: str

    @classmethod
    def of(cls, key: bytes, value: bytes) -> Seen:
        number, attempt = value.decode().split()
        return cls(key.decode(), int(number), attempt)


@dataclass
class Outcomes:
    """Transactions in the order in which their workers began them, and how they ended: `commit`,
    `abort`, or `open` if the outcome is unknown.
    """

    ends: dict[str, str] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """A line of a worker."""
        word, _, rest = line.partition(" ")
        if word in ("open", "commit", "abort"):
            self.ends[rest.strip()] = word


def anomalies(
    inputs: Mapping[str, int], outcomes: Outcomes, read: Mapping[Place, Sequence[Seen]]
) -> list[str]:
    """What is wrong. inputs: worker and how many inputs it had, numbered from 0."""
    lists: dict[str, list[int]] = defaultdict(list)
    effects: dict[str, dict[bool, set[int]]] = defaultdict(lambda: {True: set(), False: set()})
    wrong: list[str] = []
    turn = {attempt: index for index, attempt in enumerate(outcomes.ends)}
    for place, records in read.items():
        latest: dict[str, int] = {}
        for record in records:
            lists[record.key].append(record.number)
            effects[record.attempt]["/" in record.key].add(record.number)
            worker = record.attempt.partition("/")[0]
            mine = turn.get(record.attempt, -1)
            if mine < latest.get(worker, -1):
                wrong.append(f"{place}: {record} stands after a later transaction")
            latest[worker] = mine
    for attempt, parts in effects.items():
        if outcomes.ends.get(attempt) not in ("commit", "open"):
            end = outcomes.ends.get(attempt, "never begun")
            wrong.append(f"{attempt} is read, but was: {end}")
        if parts[True] != parts[False]:
            wrong.append(f"{attempt} is read in part: {parts}")
    wrong += [
        f"{attempt} was committed and is not read"
        for attempt, end in outcomes.ends.items()
        if end == "commit" and attempt not in effects
    ]
    for worker, count in inputs.items():
        wanted = {f"{worker}/{key}": list(range(key, count, KEYS)) for key in range(KEYS)}
        wanted[worker] = list(range(count))
        wrong += [
            difference(key, lists[key], numbers)
            for key, numbers in wanted.items()
            if lists[key] != numbers
        ]
    return wrong


def difference(key: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    """Where two lists part."""
    pairs = enumerate(zip(found, wanted, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(found), len(wanted)))
    return (
        f"list {key}: {list(found[at : at + 5])} instead of {list(wanted[at : at + 5])} at {at}, "
        f"{len(found)} instead of {len(wanted)} entries"
    )
