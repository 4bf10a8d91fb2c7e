"""Which faults strike which nodes, round by round, drawn from a seed.

A schedule of fewer rounds is the beginning of a longer one of the same seed, so the line that
replays a failure names only the rounds up to it. A victim is named by its part, since which
controller leads is known at run time only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random


class Kind(Enum):
    """What goes wrong."""

    KILL = "kill"
    """kill -9; started again after the time of the fault."""
    PAUSE = "pause"
    """SIGSTOP, then SIGCONT."""
    ISOLATE = "isolate"
    """No packet to or from any other node or client."""
    CUT = "cut"
    """No packet to or from any other node; clients still reach it."""
    CUT_OUT = "cut-out"
    """What it sends to other nodes is lost, what they send arrives."""
    CUT_IN = "cut-in"
    """What other nodes send to it is lost, what it sends arrives."""
    CUT_PAIR = "cut-pair"
    """No packet between it and one other controller."""
    FULL_DISK = "full-disk"
    """Its disk has no byte free; started again if it ended."""
    SLOW_SYNC = "slow-sync"
    """Each fsync takes long."""


CUTS = (Kind.ISOLATE, Kind.CUT, Kind.CUT_OUT, Kind.CUT_IN, Kind.CUT_PAIR)
CUT_WEIGHT = 0.4
"""So that the five of them are drawn as often as two other kinds."""

LEADER = "leader"
FOLLOWERS = ("follower1", "follower2")
"""The controllers that do not lead, in the order of their ids."""

PAIR_SHARE = 0.25
"""Of the rounds that have two faults at a time."""
SHORTEST_S, LONGEST_S = 0.5, 4.0
LONGEST_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. delay_s: after the beginning of its round."""

    kind: Kind
    victim: str
    delay_s: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.victim}+{self.delay_s:.1f}s for {self.seconds:.1f}s"


@dataclass(frozen=True, slots=True)
class Round:
    """The faults of one round, and how long nothing happens before them."""

    quiet_s: float
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.faults))


def draw_schedule(
    seed: int, rounds: int, *, brokers: int = 0, kinds: Collection[Kind] = tuple(Kind)
) -> list[Round]:
    """The rounds of a seed. brokers: how many there are beside the controllers. kinds: those that
    can be had on this machine.
    """
    random = Random(seed)
    usable = [kind for kind in Kind if kind in kinds]
    victims = [LEADER, *FOLLOWERS, *(f"broker{number}" for number in range(1, brokers + 1))]
    return [_draw_round(random, usable, victims) for _ in range(rounds)]


def _draw_round(random: Random, kinds: Sequence[Kind], victims: Sequence[str]) -> Round:
    count = 2 if random.random() < PAIR_SHARE else 1
    # The leader as often as all others together.
    first = LEADER if random.random() < 0.5 else random.choice(victims)
    chosen = [first, *random.sample([each for each in victims if each != first], count - 1)]
    faults = tuple(
        Fault(
            random.choices(kinds, [CUT_WEIGHT if kind in CUTS else 1.0 for kind in kinds])[0],
            victim,
            round(random.uniform(0.0, 0.5), 1) if number else 0.0,
            round(random.uniform(SHORTEST_S, LONGEST_S), 1),
        )
        for number, victim in enumerate(chosen)
    )
    return Round(round(random.uniform(0.0, LONGEST_QUIET_S), 1), faults)
