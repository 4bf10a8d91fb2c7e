"""A broker in the test's own process: its own thread and loop, a free port, a temporary folder.

The neighbour is `process.py`, the broker in a separate process, which a test can really kill.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kbroker.model import InvariantError
from kbroker.node.loop.futures import as_future
from kbroker.node.node import Broker
from kbroker.node.resources import NodeResources
from kbroker.node.run import loop_factory
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.server.dispatch import Interceptor
from kbroker.settings.broker import BrokerConfig

T = TypeVar("T")

DEFAULTS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}
"""Settings that differ from Kafka's defaults, to speed tests up; overrides take precedence."""

TIMEOUT_SECONDS: Final = 30.0

MAX_OPEN_FILES: Final = 64
"""How many segments a broker keeps open, so that ten brokers of one process stay below the usual
limit of 1,024 descriptors.
"""


class EmbeddedBrokerFailed(Exception):
    """The broker ended by itself, as the process of a node does: its only log directory failed, its
    metadata log cannot be written, or an invariant is broken. `__cause__` is the reason.
    """


class EmbeddedBroker:
    """One broker for tests. Use it as a context manager, or call `start` and `stop`.

        with EmbeddedBroker() as broker:
            broker.create_topic("events", partitions=3)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    overrides: Kafka's property names. data: a log directory to use and keep; if None, a temporary
    one is created, which `stop` removes. max_open_files: how many segments keep their file open. A
    second start uses the port of the first, so that clients find the broker again. Methods may be
    called from any thread but the broker's own. After a fatal error the broker ends, as its process
    would; the next method that is called, `stop` at the latest, raises EmbeddedBrokerFailed, once.
    """

    def __init__(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        data: str | Path | None = None,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._overrides = dict(overrides or {})
        self._max_open_files = max_open_files
        self._keep_data = data is not None
        self._data = Path(data) if data is not None else None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[bool] | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        """Held while a call is passed to the loop, so that an ending loop accepts no more calls."""
        self._interceptors: dict[int, Interceptor] = {}

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the listener; port 0 before the first start."""
        return f"{self.host}:{self.port}"

    @property
    def data(self) -> Path:
        """The log directory; made at the first start."""
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="kbroker-"))
        return self._data

    @property
    def running(self) -> bool:
        """Whether the broker's thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    # start and stop

    def start(self) -> Self:
        """Start and return once the broker listens. Raises StartupError, the error with which the
        broker failed meanwhile, or TimeoutError after 30 s. After an error nothing stays open or
        locked, and the temporary folder is deleted.
        """
        self._raise_failure()
        if self.running:
            raise InvariantError("the embedded broker is already running")
        config = BrokerConfig.from_properties(
            {
                "listeners": f"PLAINTEXT://{self.host}:{self.port}",
                "log.dirs": str(self.data),
                **DEFAULTS,
                **self._overrides,
            },
            source="EmbeddedBroker",
        )
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(config, started), name="kbroker-embedded", daemon=True
        )
        self._thread.start()
        try:
            started.result(TIMEOUT_SECONDS)
        except BaseException:
            self._abandon_start()
            self._remove_data()
            raise
        return self

    def stop(self) -> None:
        """Shut down cleanly, as after SIGTERM, and delete the temporary folder. No effect if not
        running.
        """
        self._end(clean=True)
        self._remove_data()
        self._raise_failure()

    def kill(self) -> None:
        """End as a crash of the process would: without a flush or a clean-shutdown marker; the data
        is kept for `start`.
        """
        self._end(clean=False)
        self._raise_failure()

    def restart(self) -> Self:
        """Shut down cleanly and start again with the same data and port."""
        self._end(clean=True)
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except EmbeddedBrokerFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # keep the block's own error; this may be its cause

    # use

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = 1,
    ) -> str:
        """Create a topic and return its name. Raises the KafkaError of CreateTopics."""
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ]
        )

        def create(broker: Broker) -> Deferred[CreateTopicsResponse]:
            return broker.services.channel.create_topics(request)

        (result,) = self.wait(create).topics
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")
        return name

    def intercept(self, api_key: int, function: Interceptor) -> Callable[[], None]:
        """Pass each request of that API to function first, on the broker's thread.

        function returns a response (or a Deferred) to answer instead of the broker, None to let the
        broker handle the request, or raises KafkaError. Stays in effect over restarts. Returns a
        function that ends the interception.
        """
        self._interceptors[api_key] = function
        self._apply_interceptors()

        def end() -> None:
            if self._interceptors.get(api_key) is function:
                del self._interceptors[api_key]
                self._apply_interceptors()

        return end

    def call(self, function: Callable[[Broker], T]) -> T:
        """Run function on the broker's thread, where it may read the broker's state, and return its
        result.
        """

        async def on_loop() -> T:
            return function(self._running_broker())

        return self._submit(on_loop())

    def wait(self, function: Callable[[Broker], Deferred[T]]) -> T:
        """Like `call`, and wait for the Deferred that function returns."""

        async def on_loop() -> T:
            return await as_future(function(self._running_broker()))

        return self._submit(on_loop())

    # the thread

    def _run(self, config: BrokerConfig, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                self._loop = runner.get_loop()
                try:
                    runner.run(self._serve(config, started))
                finally:
                    with self._lock:
                        self._loop = None
        except BaseException as error:  # noqa: BLE001 - a thread's top frame: the next call raises it
            if started.done():
                self._failure = self._failure or error
            else:
                started.set_exception(error)

    async def _serve(self, config: BrokerConfig, started: Future[None]) -> None:
        self._serving = asyncio.current_task()
        resources = NodeResources(config, max_open_files=self._max_open_files)
        broker = Broker(config, resources=resources)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(broker.loop_exception)
        self._ending = ending = loop.create_future()
        await broker.start()
        self._broker = broker
        broker.dispatcher.interceptors.update(self._interceptors)
        self.port = broker.bound_listeners[0].port
        failed = asyncio.ensure_future(broker.wait_failed())
        either: list[asyncio.Future[Any]] = [ending, failed]  # Any: whatever they resolve with
        started.set_result(None)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if not ending.done():  # as `run`, which then ends the process
            self._failure, self._broker = broker.failure, None
            await broker.stop()
        elif ending.result():
            await broker.stop()
            self._failure = broker.failure
        else:
            broker.kill()
            await asyncio.sleep(0)
        self._broker = None

    def _end(self, *, clean: bool) -> None:
        self._end_thread(lambda: self._end_serving(clean=clean))

    def _end_serving(self, *, clean: bool) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(clean)

    def _abandon_start(self) -> None:
        """End a start that has failed or takes too long. A cancelled start closes everything."""

        def abandon() -> None:
            if self._broker is None and self._serving is not None:
                self._serving.cancel()
            else:  # it has succeeded meanwhile
                self._end_serving(clean=True)

        self._end_thread(abandon)

    def _end_thread(self, end: Callable[[], None]) -> None:
        """Call end on the broker's thread and wait for the thread to end."""
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(end)
        thread.join(TIMEOUT_SECONDS)
        if thread.is_alive():
            raise InvariantError("the embedded broker does not stop") from self._failure
        self._thread = None

    def _raise_failure(self) -> None:
        """Raise the error that ended the broker, if no call has raised it yet."""
        failure, self._failure = self._failure, None
        if failure is not None:
            message = f"the embedded broker ended by itself: {failure}"
            raise EmbeddedBrokerFailed(message) from failure

    def _running_broker(self) -> Broker:
        if self._broker is None:
            self._raise_failure()
            raise InvariantError("the embedded broker is not running")
        return self._broker

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: as asyncio declares it
        with self._lock:
            if self._loop is None:
                coroutine.close()
                self._raise_failure()
                raise InvariantError("the embedded broker is not running")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(TIMEOUT_SECONDS)
        except CancelledError:  # the broker ended meanwhile
            self._raise_failure()
            raise

    def _apply_interceptors(self) -> None:
        self._raise_failure()
        if not self.running:
            return

        def apply(broker: Broker) -> None:
            broker.dispatcher.interceptors.clear()
            broker.dispatcher.interceptors.update(self._interceptors)

        self.call(apply)

    def _remove_data(self) -> None:
        if not self._keep_data and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None
