"""The crash model: some dozens of examples now, ten thousand in the slow run."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings

from tests.log.crash_model import CompactingMachine, CrashMachine


class Counted:
    """Says how many examples were run, and sees to it that no fewer were than it promises."""

    machine: ClassVar[type[CrashMachine]]
    settings: ClassVar[settings]

    def runTest(self) -> None:
        before = self.machine.examples
        super().runTest()  # type: ignore[misc]  # the other base's
        count = self.machine.examples - before
        print(f"{self.machine.__name__}: {count:,} examples")
        assert count >= self.settings.max_examples


class TestCrashes(Counted, CrashMachine.TestCase):  # type: ignore[misc]  # hypothesis makes it
    machine = CrashMachine
    settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


class TestCrashesOfACompactedLog(Counted, CompactingMachine.TestCase):  # type: ignore[misc]  # hypothesis makes the class
    machine = CompactingMachine
    settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_truncation_below_the_begin_ends_at_any_step(power_loss: bool) -> None:
    """Of a log whose retention still waits to rename files: they go with the truncation."""
    for after in range(1, 60):
        machine = CrashMachine()
        machine.begin(seed=0)
        machine.append_many(batches=2, size=0)
        machine.flush()
        machine.roll()
        machine.crash_soon(after=after, power_loss=power_loss)
        machine.append_idempotent(count=1, producer_id=1, size=0)
        machine.retain(is_deferred=True, keep_bytes=1)
        machine.truncate(in_worker=False, share=0.5)
        machine.teardown()


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("in_worker", [False, True])
def test_a_truncation_below_the_begin_of_an_empty_log_ends_at_any_step(
    in_worker: bool, power_loss: bool
) -> None:
    """A crash after the last segment is removed leaves a log that starts at the truncation's offset
    or its old start, not at 0.
    """
    for after in range(1, 60):
        machine = CompactingMachine()
        machine.begin(seed=0)
        machine.append_many(batches=2, size=0)
        machine.delete_records(share=1.0)
        machine.checkpoint()
        machine.retain(is_deferred=True, keep_bytes=0)
        machine.crash_soon(after=after, power_loss=power_loss)
        machine.truncate(in_worker=in_worker, share=0.5)
        machine.teardown()


def test_power_is_lost_right_behind_a_clean_stop_after_retention() -> None:
    """Some files of a removed segment had their old names then, and the log was taken for damaged:
    the stop synced nothing, as there was no new record.
    """
    for seed in range(40):
        machine = CrashMachine()
        machine.begin(seed=seed)
        try:
            machine.append_many(batches=2, size=0)
            machine.roll()
            machine.append_many(batches=2, size=0)
            machine.delete_records(share=0.5)
            machine.stop_and_start(power_loss=False)
            machine.retain(is_deferred=False, keep_bytes=1)
            machine.stop_and_start(power_loss=True)
        finally:
            machine.teardown()


def test_retention_is_killed_in_a_log_that_lost_its_last_records() -> None:
    """The empty segment behind them says where the log ends; retention moves its start there."""
    for after in range(8):
        machine = CrashMachine()
        machine.begin(seed=1)
        machine.end_transaction(commit=False)
        machine.roll()
        machine.lose_power()
        machine.crash_soon(after=after, power_loss=False)
        machine.retain(is_deferred=False, keep_bytes=0)
        machine.teardown()


AT_LENGTH = settings(
    stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestCrashesAtLength(Counted, CrashMachine.TestCase):  # type: ignore[misc]  # hypothesis makes the class
    machine = CrashMachine
    settings = settings(AT_LENGTH, max_examples=6000)


@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestCrashesOfACompactedLogAtLength(
    Counted,
    CompactingMachine.TestCase,  # type: ignore[misc]  # hypothesis makes the class
):
    machine = CompactingMachine
    settings = settings(AT_LENGTH, max_examples=4500)
