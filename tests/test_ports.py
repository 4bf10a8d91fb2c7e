"""`kbroker.ports`: Deferred results, and how they fail, chain and join."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.model import InvariantError
from kbroker.ports import (
    Chained,
    Deferred,
    Surprise,
    UnlimitedMemory,
    follow,
    gather,
    gather_by_key,
)
from kbroker.protocol.errors import ErrorCode, KafkaError


def moved() -> KafkaError:
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader moved")


def never(_: object) -> Any:
    raise AssertionError("this step must not run")


class Wait(Deferred[int]):
    """A Deferred that can stop waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.cancel_count = 0

    def cancel(self) -> None:
        self.cancel_count += 1


def observed(deferred: Deferred[Any]) -> list[object]:
    """A list that receives the value, or the error's code."""
    results: list[object] = []
    deferred.on_done(results.append, lambda error: results.append(error.code))
    return results


# a Deferred


def test_a_value_reaches_the_callbacks_in_the_order_of_registration() -> None:
    deferred: Deferred[int] = Deferred()
    calls: list[tuple[str, int]] = []
    deferred.on_done(lambda value: calls.append(("first", value)))
    deferred.on_done(lambda value: calls.append(("second", value)), never)
    assert not deferred.done
    deferred.resolve(7)
    deferred.on_done(lambda value: calls.append(("late", value)))
    assert calls == [("first", 7), ("second", 7), ("late", 7)]
    assert (deferred.done, deferred.value, deferred.error) == (True, 7, None)


def test_a_failure_reaches_the_failure_callbacks_in_the_order_of_registration() -> None:
    deferred: Deferred[int] = Deferred()
    calls: list[tuple[str, KafkaError]] = []
    error = moved()
    deferred.on_done(never, lambda error: calls.append(("first", error)))
    deferred.on_done(never, lambda error: calls.append(("second", error)))
    deferred.fail(error)
    deferred.on_done(never, lambda error: calls.append(("late", error)))
    assert calls == [("first", error), ("second", error), ("late", error)]
    assert (deferred.done, deferred.error) == (True, error)
    with pytest.raises(KafkaError) as raised:
        _ = deferred.value
    assert (raised.value.code, raised.value.message) == (error.code, error.message)


def test_a_deferred_may_be_done_from_the_start() -> None:
    assert Deferred.of(3).value == 3
    failed: Deferred[int] = Deferred.failed(moved())
    assert failed.done
    assert observed(failed) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_pending_deferred_has_no_value_and_no_error() -> None:
    deferred: Deferred[int] = Deferred()
    assert deferred.error is None
    with pytest.raises(InvariantError):
        _ = deferred.value


@pytest.mark.parametrize("first", [lambda it: it.resolve(1), lambda it: it.fail(moved())])
@pytest.mark.parametrize("second", [lambda it: it.resolve(1), lambda it: it.fail(moved())])
def test_a_deferred_is_done_once(
    first: Callable[[Deferred[int]], None], second: Callable[[Deferred[int]], None]
) -> None:
    deferred: Deferred[int] = Deferred()
    first(deferred)
    with pytest.raises(InvariantError):
        second(deferred)
    assert deferred.error is None or deferred.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_cancelling_a_deferred_does_not_stop_its_creator() -> None:
    deferred: Deferred[int] = Deferred()
    results = observed(deferred)
    deferred.cancel()
    deferred.resolve(1)
    assert results == [1]


# failures that no caller observes


@pytest.mark.parametrize("is_early", [True, False])
def test_a_failure_that_no_caller_observes_is_logged(
    caplog: pytest.LogCaptureFixture, is_early: bool
) -> None:
    deferred: Deferred[int] = Deferred()
    if is_early:
        deferred.on_done(never)
        deferred.on_done(never)
    deferred.fail(moved())
    if not is_early:
        assert not caplog.records
        deferred.on_done(never)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "the leader moved" in record.getMessage()


@pytest.mark.parametrize("is_early", [True, False])
def test_an_observed_failure_is_not_logged(
    caplog: pytest.LogCaptureFixture, is_early: bool
) -> None:
    deferred: Deferred[int] = Deferred()
    if is_early:
        deferred.on_done(never, lambda error: None)
        deferred.on_done(never)
    deferred.fail(moved())
    assert observed(deferred.then(str)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert observed(gather([deferred])) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not caplog.records


# then


def test_then_maps_the_value() -> None:
    deferred: Deferred[int] = Deferred()
    text = deferred.then(str)
    assert not text.done
    deferred.resolve(12)
    assert text.value == "12"
    assert Deferred.of(12).then(str).value == "12"


def test_then_follows_a_deferred_that_the_function_returns() -> None:
    first: Deferred[int] = Deferred()
    second: Deferred[str] = Deferred()
    asked: list[int] = []

    def ask(value: int) -> Deferred[str]:
        asked.append(value)
        return second

    result = first.then(ask)
    first.resolve(1)
    assert asked == [1]
    assert not result.done
    second.resolve("two")
    assert result.value == "two"


def test_a_function_may_return_a_value_or_a_deferred() -> None:
    def half(value: int) -> int | Deferred[int]:
        return value // 2 if value % 2 == 0 else Deferred.of(0)

    result: Deferred[int] = Deferred.of(4).then(half).then(half).then(half)
    assert result.value == 0


def test_a_failure_passes_through_a_chain() -> None:
    deferred: Deferred[int] = Deferred()
    results = observed(deferred.then(never).then(never))
    deferred.fail(moved())
    assert results == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_failure_of_the_second_step_passes_through() -> None:
    second: Deferred[str] = Deferred()
    results = observed(Deferred.of(1).then(lambda _: second).then(never))
    second.fail(moved())
    assert results == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_kafka_error_that_a_function_raises_fails_the_result() -> None:
    def refuse(value: int) -> str:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no {value}")

    result = Deferred.of(5).then(refuse)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (ErrorCode.INVALID_REQUEST, "no 5")


def test_another_exception_fails_the_result_and_spares_the_other_callbacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deferred: Deferred[int] = Deferred()
    broken = deferred.then(lambda value: value // 0)
    others = observed(deferred.then(str))
    deferred.resolve(3)
    assert others == ["3"]
    assert isinstance(broken.error, Surprise)
    assert broken.error.code == ErrorCode.UNKNOWN_SERVER_ERROR
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_an_invariant_error_is_raised_to_the_caller_of_resolve() -> None:
    def broken(value: int) -> int:
        raise InvariantError("two leaders")

    deferred: Deferred[int] = Deferred()
    deferred.then(broken)
    with pytest.raises(InvariantError, match="two leaders"):
        deferred.resolve(1)


# recover


def test_recover_replaces_a_failure() -> None:
    def code(error: KafkaError) -> ErrorCode:
        return error.code

    deferred: Deferred[ErrorCode] = Deferred()
    result = deferred.recover(code)
    deferred.fail(moved())
    assert result.value == ErrorCode.NOT_LEADER_OR_FOLLOWER
    later: Deferred[ErrorCode] = Deferred()
    retried = Deferred[ErrorCode].failed(moved()).recover(lambda error: later)
    later.resolve(ErrorCode.NONE)
    assert retried.value == ErrorCode.NONE


def test_recover_passes_a_value_on() -> None:
    assert Deferred.of(1).recover(never).value == 1


# cancel


def test_work_continues_when_the_client_of_a_chain_has_left() -> None:
    source = Wait()
    steps: list[int] = []
    result = source.then(steps.append)
    result.cancel()
    assert source.cancel_count == 0
    source.resolve(1)
    assert steps == [1]
    assert result.done


def test_a_chain_of_reads_cancels_the_step_in_progress() -> None:
    first, second = Wait(), Wait()
    steps: list[int] = []

    def ask(value: int) -> Wait:
        steps.append(value)
        return second

    result = first.then(ask, cancels_source=True).then(steps.append, cancels_source=True)
    first.resolve(1)
    results = observed(result)
    result.cancel()
    assert (first.cancel_count, second.cancel_count) == (0, 1)
    second.resolve(2)  # a source that was in its last step
    assert steps == [1]
    assert results == []
    assert not result.done


def test_a_cancelled_chain_begins_no_further_step() -> None:
    first = Wait()
    result = first.then(never, cancels_source=True)
    result.cancel()
    result.cancel()
    assert first.cancel_count == 1
    first.resolve(1)
    assert not result.done


def test_a_cancelled_recovery_does_not_begin() -> None:
    source = Wait()
    result = source.recover(never, cancels_source=True)
    result.cancel()
    source.fail(moved())
    assert source.cancel_count == 1
    assert not result.done


def test_a_cancelled_chained_neither_resolves_nor_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolved: Chained[int] = Chained()
    failed: Chained[int] = Chained()
    resolved.cancel()
    failed.cancel()
    resolved.resolve(1)
    failed.fail(moved())
    assert not resolved.done
    assert not failed.done
    assert not caplog.records


def test_cancelling_a_chained_that_is_done_does_nothing() -> None:
    source = Wait()
    chained: Chained[int] = Chained(source)
    chained.resolve(1)
    chained.cancel()
    assert (source.cancel_count, chained.is_cancelled, chained.value) == (0, False, 1)


# follow


@pytest.mark.parametrize("outcome", [5, Deferred.of(5)])
def test_follow_takes_a_value_or_a_deferred(outcome: int | Deferred[int]) -> None:
    result: Deferred[int] = Deferred()
    follow(result, outcome)
    assert result.value == 5


def test_a_chained_that_follows_cancels_what_it_follows() -> None:
    source = Wait()
    result: Chained[int] = Chained()
    follow(result, source)
    result.cancel()
    assert source.cancel_count == 1


# gather


def test_gather_keeps_the_order() -> None:
    first: Deferred[int] = Deferred()
    third: Deferred[int] = Deferred()
    result = gather([first, Deferred.of(2), third])
    third.resolve(3)
    assert not result.done
    first.resolve(1)
    assert result.value == [1, 2, 3]


def test_gathering_nothing_is_done_at_once() -> None:
    assert gather([]).value == []


def test_gather_by_key_keeps_keys_with_their_values() -> None:
    late: Deferred[int] = Deferred()
    result = gather_by_key({"b": late, "a": Deferred.of(1)})
    assert not result.done
    late.resolve(2)
    assert result.value == {"b": 2, "a": 1}
    assert gather_by_key({}).value == {}


def test_gather_fails_with_the_first_failure_and_drops_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()
    third: Deferred[int] = Deferred()
    results = observed(gather([first, second, third]))
    second.fail(moved())
    assert results == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    third.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    first.resolve(1)
    del first, second, third
    assert results == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not caplog.records


@pytest.mark.parametrize("cancels_sources", [True, False])
def test_a_gathering_of_reads_cancels_what_is_pending(
    cancels_sources: bool,
) -> None:
    first, second = Wait(), Wait()
    result = gather([first, second], cancels_sources=cancels_sources)
    first.resolve(1)
    result.cancel()
    assert second.cancel_count == int(cancels_sources)
    second.resolve(2)
    assert result.done is not cancels_sources


# reference cycles


def raised_by(deferred: Deferred[Any]) -> None:
    with pytest.raises(KafkaError):
        _ = deferred.value


def refuse(value: object) -> int:
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{value} is refused")


def test_failures_leave_no_reference_cycle(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    gc.disable()
    try:
        for fail in (refuse, lambda value: value // 0):
            source: Deferred[int] = Deferred()
            result = source.then(fail, cancels_source=True).then(str)
            joined = gather([source, result], cancels_sources=True)
            source.resolve(1)
            assert result.error is not None
            raised_by(result)
            raised_by(joined)
            del source, result, joined
        gone: Chained[int] = Chained()
        chain = gather([gone.then(str, cancels_source=True)], cancels_sources=True)
        chain.cancel()
        del gone, chain
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_raised_copy_is_the_same_error() -> None:
    records = KafkaError(ErrorCode.INVALID_RECORD, "no")
    records.extra = [1]  # type: ignore[attr-defined]  # as a subclass may have
    with pytest.raises(KafkaError) as raised:
        _ = Deferred[int].failed(records).value
    copy = raised.value
    assert copy is not records
    assert (copy.code, copy.message, str(copy)) == (records.code, "no", str(records))
    assert copy.extra == [1]  # type: ignore[attr-defined]  # of the subclass


# memory


def test_unlimited_memory_refuses_nothing() -> None:
    memory = UnlimitedMemory()
    memory.charge(1 << 60)
    assert memory.has_room(1 << 60) and memory.keep(1 << 60) and memory.lend(1 << 60)
    assert (memory.is_short, memory.overdrawn) == (False, 0)
    memory.drop(1)
    memory.release(1)
