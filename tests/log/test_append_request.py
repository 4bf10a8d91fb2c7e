"""What the appends of one request have in common."""

from __future__ import annotations

import pytest

from kbroker.log.append_request import AppendRequest, is_transactional, never_reverify
from kbroker.log.validator import AppendOrigin
from kbroker.protocol.batches.batch_builder import build_batch

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("acks", "version", "is_plain"),
    [
        (-1, 7, True),
        (0, 13, True),
        (1, None, True),
        (1, 6, False),
        (2, 12, False),
        (-2, 12, False),
    ],
)
def test_the_plain_request(acks: int, version: int | None, is_plain: bool) -> None:
    assert AppendRequest(acks, 100, NOW_MS, version).is_plain is is_plain


@pytest.mark.parametrize("origin", list(AppendOrigin))
def test_only_the_requests_of_clients_are_plain(origin: AppendOrigin) -> None:
    request = AppendRequest.of_origin(origin, -1, 100, NOW_MS, 2)
    assert request.is_plain is (origin is AppendOrigin.CLIENT)
    assert (request.origin, request.transaction_version) == (origin, 2)


def test_a_later_append_differs_in_its_time_only() -> None:
    request = AppendRequest(-1, 100, NOW_MS, 12, 2, None)
    later = request.at(NOW_MS + 5)
    differing = [
        name for name in request.__slots__ if getattr(request, name) != getattr(later, name)
    ]
    assert (differing, later.now_ms) == (["now_ms"], NOW_MS + 5)


def test_a_transactional_batch_needs_a_transaction() -> None:
    batch = build_batch(
        [(NOW_MS, None, b"", [])], producer_id=1, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    plain = build_batch([(NOW_MS, None, b"", [])])
    without = AppendRequest(1, 100, NOW_MS, 12, 2, None)
    assert is_transactional(batch) and without.lacks_transaction(batch)
    assert not AppendRequest(1, 100, NOW_MS, 12, 2, never_reverify).lacks_transaction(batch)
    assert not without.lacks_transaction(plain)
    assert not without.lacks_transaction(batch[:22])
