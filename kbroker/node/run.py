"""`kbroker serve`: a broker until SIGTERM or SIGINT. A second signal stops at once.

Uses uvloop if installed, otherwise asyncio's own loop. A configuration error is one line and exit
code 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

if sys.platform != "win32":
    import fcntl

from kbroker import __version__
from kbroker.log_lines import JsonFormatter, LineFormatter
from kbroker.metadata.image import Endpoint
from kbroker.model import StartupError
from kbroker.node.advertised import to_try, try_in_background
from kbroker.node.loop.garbage import CollectorPolicy
from kbroker.node.node import Broker
from kbroker.node.resources import NodeResources
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.listeners import Listener

logger = logging.getLogger(__name__)

LOG_FORMAT: Final = "%(asctime)s %(levelname)s [node {node_id}] %(name)s: %(message)s"
SWITCH_SECONDS: Final = 0.0005
"""How long a computing worker may hold the interpreter while the loop waits for it: with Python's 5
ms each of the loop's system calls, which all release it, could take 5 ms longer.
"""

ROOM_FOR_FILES: Final = 16_384
"""The number of descriptors for which the kernel allocates its table at the start (8 bytes
each).
"""

STOP_AT_ONCE: Final = 130
"""Exit code after a second signal: the stop was not clean."""


def serve(config: BrokerConfig, *, log_level: int = logging.INFO, logs_json: bool = False) -> int:
    """Run a broker until a signal stops it. logs_json: every line is a JSON object, on standard
    error. Returns the exit code.
    """
    configure_logging(config.node_id, log_level, is_json=logs_json)
    raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    collector = CollectorPolicy()
    collector.enable()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(config, collector, _log_line if logs_json else _print_line))
    except StartupError as error:
        if logs_json:
            logger.critical("%s", error)
        else:
            print(f"kbroker: {error}", file=sys.stderr)
        return 1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def configure_logging(node_id: int, level: int, *, is_json: bool = False) -> None:
    """Log to standard error, with the node in each line and with clients' text escaped. A root
    logger that already has handlers is not changed.
    """
    handler = logging.StreamHandler()
    plain = LineFormatter(LOG_FORMAT.format(node_id=node_id))
    handler.setFormatter(JsonFormatter(node_id) if is_json else plain)
    logging.basicConfig(level=level, handlers=[handler])


def raise_file_limit() -> None:
    """Raise the limit on open files to the maximum that the system allows: a partition needs up to
    four, a connection up to two.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            logger.debug("the limit on open files stays at %d: %s", soft, error)
    _grow_descriptor_table(min(hard, ROOM_FOR_FILES) if hard > 0 else ROOM_FOR_FILES)


def _grow_descriptor_table(room: int) -> None:
    """Let Linux allocate its table of descriptors now: once there are threads, each doubling waits
    for all CPUs (up to 11 ms in measurements), in the open or accept that needs it.
    """
    if sys.platform == "win32":
        return
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, room - 1))
    except OSError as error:
        logger.debug("cannot allocate %d descriptors in advance: %s", room, error)
    finally:
        os.close(fd)


async def _serve(
    config: BrokerConfig, collector: CollectorPolicy, say: Callable[[str], None]
) -> int:
    resources = NodeResources(config)
    resources.set_log_level = logging.Logger.setLevel
    broker = Broker(config, resources=resources)
    asyncio.get_running_loop().set_exception_handler(broker.loop_exception)
    stopping = asyncio.Event()
    at_once = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            logger.warning(
                "a second signal: stopping at once, with exit code %d; the next start recovers",
                STOP_AT_ONCE,
            )
            at_once.set()
        stopping.set()

    _handle_signals(on_signal)
    starting = asyncio.ensure_future(broker.start())
    told = asyncio.ensure_future(stopping.wait())
    failed = asyncio.ensure_future(broker.wait_failed())
    await asyncio.wait({starting, told, failed}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        collector.begin()
        call_later = asyncio.get_running_loop().call_later
        collector.collect_when_grown(call_later)
        collector.collect_at_rest(call_later, lambda: broker.stalls.resting)
        _announce(broker, say)
        await asyncio.wait({failed, told}, return_when=asyncio.FIRST_COMPLETED)
    else:
        logger.info("stopping before the start is complete")
        starting.cancel()
        await _or_at_once(starting, at_once)
        if not starting.cancelled() and (error := starting.exception()) is not None:
            logger.warning("the start failed while stopping: %s", error)
    failed.cancel()
    stop = asyncio.ensure_future(broker.stop())
    await _or_at_once(stop, at_once)
    stop.result()
    return 1 if broker.failure is not None else 0


def _print_line(line: str) -> None:
    print(line, flush=True)


def _log_line(line: str) -> None:
    logger.info("%s", line)


def _announce(broker: Broker, say: Callable[[str], None]) -> None:
    """Print where each listener is and its advertised address; log that clients are not
    authenticated, and unusable advertised addresses.
    """
    image, node_id = broker.metadata.image, broker.config.node_id
    told: dict[str, Endpoint] = {}
    for registrations in (image.brokers, image.controllers):
        if node_id in registrations:
            told.update(registrations[node_id].endpoints)
    try_in_background(to_try(told.values(), broker.bound_listeners))
    for listener in broker.bound_listeners:
        endpoint = told.get(listener.name)
        advertised = "not advertised"
        if endpoint is not None:
            where = Listener(endpoint.name, endpoint.host, endpoint.port, "")
            advertised = f"advertised as {where}"
        say(
            f"kbroker {__version__} listening on {listener}, {advertised}"
            f" (node {node_id}, cluster {image.cluster_id})"
        )
    listeners = broker.bound_listeners
    logger.log(
        logging.INFO if all(listener.is_local for listener in listeners) else logging.WARNING,
        "clients are not authenticated: every client that can reach %s has access to all topics",
        " or ".join(map(str, listeners)),
    )


async def _or_at_once(task: asyncio.Future[None], at_once: asyncio.Event) -> None:
    """Wait for a task; end the process if a second signal arrives first."""
    hurried = asyncio.ensure_future(at_once.wait())
    either: set[asyncio.Future[Any]] = {task, hurried}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not task.done():
        logging.shutdown()
        os._exit(STOP_AT_ONCE)  # does not wait for flushes; the next start recovers


def _handle_signals(on_signal: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, on_signal)
        except NotImplementedError:  # asyncio on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(on_signal))
