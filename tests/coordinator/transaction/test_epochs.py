"""Which producer id and epoch InitProducerId gives."""

from __future__ import annotations

import pytest

from kbroker.coordinator.transaction.epochs import (
    check_expected,
    fenced,
    initialized,
    needs_producer_id,
)
from kbroker.coordinator.transaction.producer import Producer
from kbroker.coordinator.transaction.records import (
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.protocol.errors import ErrorCode, KafkaError

E, S = ErrorCode, TransactionState
CURRENT = Transaction("tx", 9, 4, 500, S.COMPLETE_COMMIT, previous_producer_id=9)
LAST = CURRENT._replace(producer_epoch=LAST_CLIENT_EPOCH)
FENCED = CURRENT._replace(producer_epoch=MAX_EPOCH, last_producer_epoch=LAST_CLIENT_EPOCH)
ROTATED = CURRENT._replace(
    producer_id=10,
    producer_epoch=0,
    previous_producer_id=9,
    last_producer_epoch=LAST_CLIENT_EPOCH,
)


@pytest.mark.parametrize(
    ("current", "is_needed"),
    [
        pytest.param(None, True, id="new"),
        pytest.param(CURRENT, False, id="epochs left"),
        pytest.param(LAST, True, id="last epoch"),
        pytest.param(LAST._replace(state=S.PREPARE_COMMIT), False, id="last epoch, ending"),
    ],
)
def test_when_a_fresh_producer_id_is_needed(current: Transaction | None, is_needed: bool) -> None:
    assert needs_producer_id(current) is is_needed


@pytest.mark.parametrize(
    ("current", "expected", "is_known"),
    [
        pytest.param(CURRENT, None, True, id="claims nothing"),
        pytest.param(CURRENT, Producer(9, 4), True, id="present"),
        pytest.param(CURRENT, Producer(9, 3), False, id="former epoch"),
        pytest.param(CURRENT._replace(last_producer_epoch=3), Producer(9, 3), True, id="retry"),
        pytest.param(CURRENT, Producer(8, 4), False, id="other id"),
        pytest.param(ROTATED, Producer(9, LAST_CLIENT_EPOCH), True, id="retry of a rotation"),
        pytest.param(ROTATED, Producer(9, 4), False, id="long before a rotation"),
    ],
)
def test_whose_claims_are_known(
    current: Transaction, expected: Producer | None, is_known: bool
) -> None:
    if is_known:
        check_expected(current, expected)
        return
    with pytest.raises(KafkaError) as raised:
        check_expected(current, expected)
    assert raised.value.code is E.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("current", "expected", "fresh_id", "given"),
    [
        pytest.param(CURRENT, None, None, (9, 5), id="next epoch"),
        pytest.param(CURRENT, Producer(9, 4), None, (9, 5), id="next epoch, claimed"),
        pytest.param(
            CURRENT._replace(last_producer_epoch=3), Producer(9, 3), None, (9, 4), id="retry"
        ),
        pytest.param(LAST, None, 77, (77, 0), id="no epoch left"),
        pytest.param(FENCED, Producer(9, LAST_CLIENT_EPOCH), 77, (77, 0), id="fenced"),
        pytest.param(LAST, None, None, None, id="no epoch and no id"),
    ],
)
def test_what_init_producer_id_gives(
    current: Transaction,
    expected: Producer | None,
    fresh_id: int | None,
    given: tuple[int, int] | None,
) -> None:
    def init() -> Transaction:
        return initialized(current, expected, timeout_ms=900, wall_ms=7, new_producer_id=fresh_id)

    if given is None:
        with pytest.raises(KafkaError) as raised:
            init()
        assert raised.value.code is E.CONCURRENT_TRANSACTIONS
        return
    after = init()
    assert (after.producer_id, after.producer_epoch) == given
    assert (after.state, after.timeout_ms, after.last_update_ms) == (S.EMPTY, 900, 7)


def test_fencing_raises_the_epoch_and_aborts() -> None:
    opened = CURRENT._replace(state=S.ONGOING)
    after = fenced(opened, wall_ms=7, next_producer_id=NO_PRODUCER_ID)
    assert (after.producer_epoch, after.last_producer_epoch) == (5, 4)
    assert (after.state, after.next_producer_id) == (S.PREPARE_ABORT, NO_PRODUCER_ID)
    last = fenced(LAST._replace(state=S.ONGOING), wall_ms=7, next_producer_id=77)
    assert (last.producer_epoch, last.next_producer_id) == (MAX_EPOCH, 77)
