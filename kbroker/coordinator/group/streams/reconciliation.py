"""Moves one member of a streams group from its current to its target tasks (KIP-1071).

STABLE -> UNREVOKED_TASKS -> UNRELEASED_TASKS -> STABLE

As for the partitions of consumer groups, with one more rule: a process has a task only once, in any
role, since all its threads share one state directory.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import msgspec

from kbroker.coordinator.group.streams.tasks import DatedTasks, HeldTasks, Task, Tasks, TaskSet


class StreamsMemberState(IntEnum):
    """The member state as it is stored in the log."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class CurrentTasks(msgspec.Struct, frozen=True):
    """A member's current assignment. A new member has epoch 0 and no tasks."""

    member_epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: HeldTasks = msgspec.field(default_factory=HeldTasks)
    revoking: HeldTasks = msgspec.field(default_factory=HeldTasks)

    def is_at(self, epoch: int) -> bool:
        """Whether the member has reached its target in that epoch."""
        return self.state is StreamsMemberState.STABLE and self.member_epoch == epoch


class Holders(Protocol):
    """The current owners of tasks."""

    def is_free_to_run(self, task: Task, process_id: str) -> bool:
        """Whether no member runs the task, and the process does not keep its state."""
        ...

    def is_free_to_keep(self, task: Task, process_id: str) -> bool:
        """Whether the process does not have the task."""
        ...


def reconcile(
    current: CurrentTasks,
    *,
    target_epoch: int,
    target: TaskSet,
    process_id: str,
    holders: Holders,
    said: TaskSet | None,
) -> CurrentTasks:
    """The next assignment of a member that sent a heartbeat; equal to current if nothing changes.

    said: the tasks that the member reports, None if it did not.
    """
    step = _Step(target_epoch, target, process_id, holders, said)
    match current.state:
        case StreamsMemberState.STABLE:
            if current.member_epoch == target_epoch:
                return current
            return step.take(current, current.member_epoch)
        case StreamsMemberState.UNREVOKED_TASKS:
            if said is None or current.revoking.has_any(said):
                return current
            return step.take(current, current.member_epoch + 1)
        case _:
            return step.take(current, current.member_epoch)


class _Step(msgspec.Struct, frozen=True):
    target_epoch: int
    target: TaskSet
    process_id: str
    holders: Holders
    said: TaskSet | None

    def take(self, current: CurrentTasks, epoch: int) -> CurrentTasks:
        held = current.assigned
        kept_active, lost_active = _split_dated(held.active, self.target.active)
        kept_standby, lost_standby = _split(held.standby, self.target.standby)
        kept_warmup, lost_warmup = _split(held.warmup, self.target.warmup)
        revoking = HeldTasks(lost_active, lost_standby, lost_warmup)
        if revoking and (self.said is None or revoking.has_any(self.said)):
            kept = HeldTasks(kept_active, kept_standby, kept_warmup)
            unrevoked = StreamsMemberState.UNREVOKED_TASKS
            return CurrentTasks(epoch, current.member_epoch, unrevoked, kept, revoking)
        to_run, waits_to_run = self._new(
            self.target.active, kept_active, self.holders.is_free_to_run
        )
        keep = self.holders.is_free_to_keep
        standby, waits_standby = self._new(self.target.standby, kept_standby, keep)
        warmup, waits_warmup = self._new(self.target.warmup, kept_warmup, keep)
        is_waiting = waits_to_run or waits_standby or waits_warmup
        assigned = HeldTasks(
            {
                name: {
                    **kept_active.get(name, {}),
                    **dict.fromkeys(to_run.get(name, ()), self.target_epoch),
                }
                for name in sorted(kept_active.keys() | to_run.keys())
            },
            _merged(kept_standby, standby),
            _merged(kept_warmup, warmup),
        )
        state = StreamsMemberState.STABLE
        if is_waiting:
            state = StreamsMemberState.UNRELEASED_TASKS
        return CurrentTasks(self.target_epoch, current.member_epoch, state, assigned)

    def _new(
        self,
        wanted: Tasks,
        kept: Tasks | DatedTasks,
        is_free: Callable[[Task, str], bool],
    ) -> tuple[dict[str, frozenset[int]], bool]:
        """The tasks that can be assigned, and whether the member must wait for tasks of other
        members.
        """
        taken: dict[str, frozenset[int]] = {}
        is_waiting = False
        for name, partitions in wanted.items():
            missing = partitions.difference(kept.get(name, ()))
            free = frozenset(one for one in missing if is_free((name, one), self.process_id))
            is_waiting = is_waiting or free != missing
            if free:
                taken[name] = free
        return taken, is_waiting


def _split_dated(
    held: DatedTasks, wanted: Tasks
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    kept: dict[str, dict[int, int]] = {}
    lost: dict[str, dict[int, int]] = {}
    for name, dated in held.items():
        for partition, epoch in dated.items():
            side = kept if partition in wanted.get(name, frozenset()) else lost
            side.setdefault(name, {})[partition] = epoch
    return kept, lost


def _split(
    held: Tasks, wanted: Tasks
) -> tuple[dict[str, frozenset[int]], dict[str, frozenset[int]]]:
    kept = {name: partitions & wanted.get(name, frozenset()) for name, partitions in held.items()}
    lost = {name: partitions - wanted.get(name, frozenset()) for name, partitions in held.items()}
    return (
        {name: partitions for name, partitions in kept.items() if partitions},
        {name: partitions for name, partitions in lost.items() if partitions},
    )


def _merged(first: Tasks, second: Tasks) -> dict[str, frozenset[int]]:
    return {
        name: first.get(name, frozenset()) | second.get(name, frozenset())
        for name in sorted(first.keys() | second.keys())
    }
