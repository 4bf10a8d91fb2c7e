"""The port itself: paths, and what hostile peers may not do. The node behind it is scripted."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from kbroker.model import StartupError
from kbroker.server.monitoring import endpoint as module
from kbroker.server.monitoring.endpoint import SETTING, MonitoringEndpoint
from kbroker.server.monitoring.health import HealthCheck
from kbroker.server.monitoring.http_messages import MAX_HEAD_BYTES
from kbroker.settings.broker import BrokerConfig
from tests.node.cluster import until
from tests.server.loopback import LOOPS

Script = Callable[[MonitoringEndpoint, "Node"], Awaitable[None]]


class Node:
    """A `MonitoredNode`. pieces: of a scrape; rendered: how many of them were asked for."""

    def __init__(self) -> None:
        self.pieces: Callable[[], Iterator[str]] = lambda: iter(["a 1\n", "b 2\n"])
        self.rendered = 0
        self.is_alive = True
        self.is_ready = True

    def metrics(self) -> Iterator[str]:
        for piece in self.pieces():
            self.rendered += 1
            yield piece

    def liveness(self) -> list[HealthCheck]:
        return [HealthCheck("process", self.is_alive, "so so")]

    def readiness(self) -> list[HealthCheck]:
        return [*self.liveness(), HealthCheck("unfenced", self.is_ready, "perhaps")]

    def description(self) -> Mapping[str, str]:
        return {"Node": "7"}


Run = Callable[[Script], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a script beside an endpoint on a free port, on either kind of loop."""

    async def main(script: Script) -> None:
        node = Node()
        served = MonitoringEndpoint("127.0.0.1:0", node)
        await served.start()
        try:
            async with asyncio.timeout(60):
                await script(served, node)
        finally:
            served.close()

    def run_script(script: Script) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main(script))

    return run_script


async def connect(
    served: MonitoringEndpoint, *, host: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.port, local_addr=(host, 0))


async def ask(served: MonitoringEndpoint, request: bytes) -> bytes:
    """All that is answered until the connection ends."""
    reader, writer = await connect(served)
    try:
        writer.write(request)
        answer = b""
        try:
            while piece := await reader.read(1 << 16):
                answer += piece
        except ConnectionResetError:
            pass
        return answer
    finally:
        writer.close()


async def get(served: MonitoringEndpoint, path: str) -> tuple[int, str]:
    """The status and the body."""
    answer = await ask(served, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body.decode()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


def test_paths(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        assert await get(served, "/healthz") == (200, "[+] process: so so\n")
        assert (await get(served, "/readyz?verbose"))[0] == 200
        node.is_ready = False
        assert (await get(served, "/healthz"))[0] == 200
        ready = await get(served, "/readyz")
        assert ready == (503, "[+] process: so so\n[-] unfenced: perhaps\n")
        node.is_alive = False
        assert (await get(served, "/healthz"))[0] == 503
        status, page = await get(served, "/")
        assert status == 200 and "/metrics" in page
        assert (await get(served, "/metrics/"))[0] == 404
        assert (await get(served, "/favicon.ico"))[0] == 404

    run(script)


def test_a_scrape_is_chunked_for_those_who_know_chunks(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        modern = await ask(served, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert modern.endswith(b"\r\n\r\n8\r\na 1\nb 2\n\r\n0\r\n\r\n")
        old = await ask(served, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert old.endswith(b"\r\n\r\na 1\nb 2\n") and b"chunked" not in old
        node.rendered = 0
        head = await ask(served, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")
        assert node.rendered == 0

    run(script)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", b"405", id="method"),
        pytest.param(b"\0\0\0\x10\r\n\r\n", b"400", id="no HTTP"),
        pytest.param(b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404", id="path"),
        pytest.param(b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\n\r\n", b"404", id="long path"),
    ],
)
def test_what_is_refused_has_no_body(run: Run, request_bytes: bytes, status: bytes) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        answer = await ask(served, request_bytes)
        assert answer.split(b" ", 2)[1] == status
        assert answer.endswith(b"\r\n\r\n")

    run(script)


def test_a_head_without_end_ends_the_connection(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        answer = await ask(served, b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES)
        assert answer == b"" or b" 431 " in answer  # unread bytes may reset the connection first
        assert node.rendered == 0
        assert (await get(served, "/healthz"))[0] == 200

    run(script)


def test_a_slow_request_ends_with_its_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.1)

    async def script(served: MonitoringEndpoint, node: Node) -> None:
        reader, writer = await connect(served)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert await ended(reader)
        writer.close()
        assert not served._connections

    run(script)


def test_nothing_is_rendered_for_a_peer_that_does_not_read(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESPONSE_SECONDS", 0.5)

    async def script(served: MonitoringEndpoint, node: Node) -> None:
        def endless() -> Iterator[str]:
            while True:
                yield "x" * 16_384

        node.pieces = endless
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", served.port))
        await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: served._connections)
        seen = -1
        while seen != node.rendered:
            seen = node.rendered
            assert seen * 16_384 < 32 << 20, "as much as the kernel's buffers hold, no more"
            await asyncio.sleep(0.1)
        node.pieces = lambda: iter(["a 1\n"])
        assert (await get(served, "/metrics"))[1].startswith("4\r\na 1\n")
        await until(lambda: not served._connections)
        slow.close()

    run(script)


def test_connections_that_hang_keep_no_one_out(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        hanging = [await connect(served) for _ in range(module.MAX_CONNECTIONS + 8)]
        for _, writer in hanging:
            writer.write(b"GET /metr")
        assert (await get(served, "/readyz"))[0] == 200
        assert len(served._connections) <= module.MAX_CONNECTIONS
        assert await ended(hanging[0][0]), "the oldest"
        for _, writer in hanging:
            writer.close()

    run(script)


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has one address")
def test_who_has_most_connections_loses_one(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        reader, writer = await connect(served)  # the oldest of all
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        flood = [await connect(served, host="127.0.0.2") for _ in range(2 * module.MAX_CONNECTIONS)]
        while not await ended(flood[module.MAX_CONNECTIONS][0]):
            pass
        writer.write(b"\r\n")
        assert (await reader.read(15)) == b"HTTP/1.1 200 OK"
        for _, each in (*flood, (reader, writer)):
            each.close()

    run(script)


def test_a_scrape_that_fails_is_seen_to_be_cut(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        def failing() -> Iterator[str]:
            yield "x" * 40_000
            raise RuntimeError("a defect")

        node.pieces = failing
        answer = await ask(served, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"x" * 40_000 in answer and not answer.endswith(b"0\r\n\r\n")
        assert (await get(served, "/healthz"))[0] == 200

    run(script)
    assert "a request for metrics or health failed" in caplog.text
    assert "a defect" in caplog.text


def test_the_end_of_the_endpoint_is_the_end_of_its_connections(run: Run) -> None:
    async def script(served: MonitoringEndpoint, node: Node) -> None:
        reader, writer = await connect(served)
        writer.write(b"GET /metr")
        await until(lambda: served._connections)
        served.close()
        served.close()
        assert await ended(reader)
        writer.close()
        with pytest.raises(OSError, match="Connect"):
            await connect(served)

    run(script)


@pytest.mark.parametrize("address", ["9404", ":9404", "localhost:", "localhost:x", "h:70000"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(StartupError, match=SETTING):
        BrokerConfig.from_properties({SETTING: address})


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"{SETTING}={address}"):
            asyncio.run(MonitoringEndpoint(address, Node()).start())
