"""A JoinGroup, as a classic group keeps it: its timeouts and the memory of what it says."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.group.membership.join import PROTOCOL_BYTES, Join, said_bytes


def join(**options: Any) -> Join:
    values: dict[str, Any] = {
        "member_id": "",
        "instance_id": None,
        "client_id": "client",
        "client_host": "/h",
        "session_timeout_ms": 10,
        "rebalance_timeout_ms": 20,
        "protocol_type": "consumer",
        "protocols": [],
        "version": 9,
        "waiter": None,
    }
    return Join(**{**values, **options})


@pytest.mark.parametrize(("said_ms", "kept_ms"), [(20, 20), (0, 0), (-1, 10)])
def test_version_0_has_no_rebalance_timeout(said_ms: int, kept_ms: int) -> None:
    assert join(rebalance_timeout_ms=said_ms).rebalance_timeout_ms == kept_ms


def test_memory_grows_with_all_that_a_client_chooses() -> None:
    least = said_bytes([])
    assert said_bytes([], "abc", None, "de") == least + 5
    assert said_bytes([("range", b"x" * 9), ("rr", b"")]) == least + 2 * PROTOCOL_BYTES + 16


def test_the_id_that_a_new_member_will_get_is_counted() -> None:
    """It begins with the instance id, or else the client id."""
    known, new = join(member_id="m" * 50), join()
    assert known.size_bytes == said_bytes([], "m" * 50, "client", None)
    assert new.size_bytes == said_bytes([], "client", "client", None)
    static = join(instance_id="i" * 30)
    assert static.size_bytes == said_bytes([], "i" * 30, "client", "i" * 30)
