"""Connections leave enough file descriptors for logs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.log.storage.descriptor_reserve import RESERVE
from kbroker.server.network.descriptors import (
    MIN_CONNECTIONS,
    DescriptorBudget,
    descriptor_budget,
    room_for_connections,
)
from tests.server.loopback import LOOPS, FileRange, Loopback, NewLoop, run, until

resource = pytest.importorskip("resource")

SIZE = 600_000


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_connection_beyond_the_budget_is_refused(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Loopback() as loopback:
            budget = loopback.shared.descriptors = DescriptorBudget(1)
            first = await loopback.connect()
            await first.send(b"e here")
            assert await first.receive() == b"e here"
            second = await loopback.connect()
            assert await second.ended()
            await first.close()
            await until(lambda: not budget.used)
            assert loopback.shared.limits.count == 0
            third = await loopback.connect()
            await third.send(b"e again")
            assert await third.receive() == b"e again"
            await second.close()
            await third.close()

    run(new_loop, main)
    assert "ulimit -n" in caplog.text


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("limit", [1, 2], ids=["read", "sendfile"])
def test_without_a_descriptor_for_sendfile_ranges_are_read(
    new_loop: NewLoop, limit: int, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(200)) * (SIZE // 200))

    async def main() -> None:
        async with Loopback(send_buffer_bytes=8192) as loopback:
            budget = loopback.shared.descriptors = DescriptorBudget(limit)
            loopback.script.parts[b"file"] = lambda: [
                struct.pack(">i", SIZE),
                FileRange(path, 0, SIZE),
            ]
            peer = await loopback.connect()
            for _ in range(2):
                await peer.send(b"xfile")
                assert await peer.receive() == path.read_bytes()
            assert budget.used == limit
            await peer.close()
            await until(lambda: not loopback.shared.connections)
            assert budget.used == 0

    run(new_loop, main)


def test_logs_and_the_reserve_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 2000))
    assert room_for_connections(64, log_files=500) == 436
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 512))
    assert room_for_connections(64, log_files=500) == MIN_CONNECTIONS


def test_the_reserve_takes_no_more_than_a_share_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[int] = []
    monkeypatch.setattr(type(RESERVE), "hold", lambda _, size: held.append(size))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 2000))
    for reserve in (64, 2**31 - 1):
        descriptor_budget(reserve, log_files=500)
    assert held == [16, 125]


def test_no_connection_is_admitted_while_the_reserve_is_not_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = descriptor_budget(64, log_files=500)
    try:
        assert budget.take()
        assert RESERVE.lend()
        with monkeypatch.context() as patch:
            patch.setattr(type(RESERVE), "refill", lambda self: self.missing <= 0)
            assert not budget.take()
        budget.refill()
        assert budget.take()
        assert budget.used == 2
    finally:
        budget.close()
        budget.close()
    assert RESERVE.missing == 0
