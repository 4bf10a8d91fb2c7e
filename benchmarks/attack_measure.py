"""One attack on a broker of its own, and what the broker's other clients notice of it.

`Arena` owns the broker's process and its directory; `Prober` is the bystander, who asks for
ApiVersions all the time; `Arena.attack` gives an `Outcome`. The neighbour `api_attack` decides what
is sent and makes the table.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.attack_bodies import Attack
from benchmarks.attack_broker import LoopAccount, LoopFigures
from benchmarks.attack_controllers import ControllerWorld, QuorumView
from benchmarks.attack_scenes import Scene
from benchmarks.attack_values import Names
from benchmarks.attack_world import World, first_error
from kbroker.protocol.apis import response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import decode_response_header
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port

ANSWER_S: Final = 20.0
"""An answer that takes longer is given up."""

START_S: Final = 300.0
"""A node may take so long to start while others use the machine."""

GIVEN_UP_CPU_S: Final = 5.0
"""A loop that computes for longer and does not look at its account is taken to be stuck."""

QUIET_LOOKS: Final = 100
"""A request without an answer, whose broker's loop has looked at its account so often and done
nothing else, waits for an event: 0.2 s on an idle machine.
"""

SETTLE_S: Final = 3.0
LOOK_S: Final = 0.03
IDLE_SHARE: Final = 0.2
READ_BYTES: Final = 1 << 18
DECODED_BYTES: Final = 1 << 20
"""A longer answer is not searched for its error."""

LARGEST_KEPT_BYTES: Final = 1 << 28

_PROBE: Final = struct.pack(">ihhihs", 11, 18, 0, 1, 1, b"p")


@dataclass(frozen=True)
class Outcome:
    """What came of an attack. stall_s, cpu_s: the longest turn of the broker's loop, as elapsed
    time and as CPU. total_cpu_s: all the loop's CPU. wait_s: the longest a bystander waited for an
    answer. peak_bytes: of memory, above that before. where: what the loop did in its stalls.
    """

    attack: Attack
    request_bytes: int
    answer: str
    answer_bytes: int
    cpu_s: float
    stall_s: float
    total_cpu_s: float
    wait_s: float
    peak_bytes: int
    surprises: int
    where: str


class Prober:
    """A bystander: asks for ApiVersions v0 all the time and notes the longest wait."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = socket.create_connection((host, port), timeout=120)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._longest = 0.0
        self._asked: float | None = None
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> float:
        """The longest wait since the last call, in seconds."""
        with self._lock:
            asked, longest = self._asked, self._longest
            self._longest = 0.0
        return max(longest, 0.0 if asked is None else time.monotonic() - asked)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.002):
                asked = time.monotonic()
                with self._lock:
                    self._asked = asked
                self._connection.sendall(_PROBE)
                left = 4 + struct.unpack(">i", self._connection.recv(4, socket.MSG_WAITALL))[0] - 4
                while left:
                    left -= len(self._connection.recv(left))
                with self._lock:
                    self._asked = None
                    self._longest = max(self._longest, time.monotonic() - asked)
        except (OSError, struct.error) as error:
            self.failure = repr(error)


class Arena:
    """A node on a copy of a prepared directory. scene: its settings, and what it has."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._scene = scene
        self._controller_port = free_port() if scene.has_controller_listener else 0
        self._properties = scene.properties(self._controller_port)
        self._quorum: QuorumView | None = None
        self._base = folder / "base"
        self._data = folder / "data"
        self._account_path = folder / "account"
        self._broker: BrokerProcess | None = None
        self._account: LoopAccount | None = None
        self._prober: Prober | None = None
        self._world: World | None = None
        self._number = 0
        self.worlds: dict[int, Sequence[Names]] = {}
        self.is_stuck = False
        """The last attack holds the loop still: another broker is needed."""
        self.has_changed = False
        """The metadata quorum is not as it was before: another node is needed."""
        self.log = folder / "broker.log"

    @property
    def broker(self) -> BrokerProcess:
        if self._broker is None:
            raise RuntimeError("no broker runs")
        return self._broker

    def prepare(self) -> None:
        """Make the directory that every broker begins with."""
        with BrokerProcess(
            self._base, overrides=self._properties, start_timeout_s=START_S
        ) as broker:
            world = self._scene.world(broker.host, broker.port, self._controller_port)
            world.prepare()
            world.close()

    def start(self) -> None:
        """A fresh broker."""
        self.stop()
        self.is_stuck = self.has_changed = False
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.copytree(self._base, self._data)
        self._account = LoopAccount(self._account_path)
        self._broker = BrokerProcess(
            self._data,
            overrides=self._properties,
            log=self.log,
            start_timeout_s=START_S,
            command=(sys.executable, "-m", "benchmarks.attack_broker", str(self._account_path)),
        )
        self._broker.start()
        host, port = self._broker.host, self._broker.port
        self._world = self._scene.world(host, port, self._controller_port)
        self.worlds = self._world.join()
        self._quorum = None
        if isinstance(self._world, ControllerWorld):
            self._quorum = self._world.state()
        self._prober = Prober(self._broker.host, self._broker.port)
        self._settle()

    def stop(self) -> None:
        """End broker and prober, if they run."""
        if self._prober is not None:
            self._prober.stop()
            self._prober = None
        if self._world is not None:
            self._world.close()
            self._world = None
        if self._broker is not None:
            self._broker.kill()
            self._broker = None
        if self._account is not None:
            self._account.close()
            self._account = None

    def attack(self, attack: Attack) -> Outcome:
        """Send one and watch until the broker is at rest again."""
        if self._account is None or self._prober is None:
            raise RuntimeError("no broker runs")
        broker = self.broker
        self._number += 1
        frame = attack.frame(self._number)
        self._account.reset()
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
        before = peak_bytes(broker.pid)
        self._prober.take()
        cpu_s = broker.cpu_seconds()
        answer, size = self._send(attack, frame)
        self._settle()
        cpu_s = broker.cpu_seconds() - cpu_s
        figures, self.is_stuck = self._next_look()
        if self.is_stuck:
            cpu_s = max(cpu_s, GIVEN_UP_CPU_S)
            figures = figures._replace(longest_cpu_s=cpu_s, longest_stall_s=cpu_s, cpu_s=cpu_s)
        wait_s = self._prober.take()
        self.has_changed = not self.is_stuck and self._needs_another_node(attack.api_key)
        return Outcome(
            attack, len(frame), answer, size, figures.longest_cpu_s, figures.longest_stall_s,
            figures.cpu_s, wait_s, peak_bytes(broker.pid) - before,
            figures.surprises, self._account.stacks(),
        )  # fmt: skip

    def _needs_another_node(self, api_key: int) -> bool:
        world = self._world
        return isinstance(world, ControllerWorld) and world.has_changed(self._quorum, api_key)

    def _next_look(self) -> tuple[LoopFigures, bool]:
        """The account after the loop's next look; whether the broker has used `GIVEN_UP_CPU_S`
        meanwhile. That is CPU, since a busy machine may delay the look for long.
        """
        if self._account is None:
            raise RuntimeError("no broker runs")
        looks, cpu_s = self._looks(), self.broker.cpu_seconds()
        while (figures := self._account.read()).looks == looks:
            if self.broker.cpu_seconds() - cpu_s > GIVEN_UP_CPU_S or not self.broker.running():
                return figures, True
            time.sleep(0.01)
        return figures, False

    def _send(self, attack: Attack, frame: bytes) -> tuple[str, int]:
        """What is answered, in words, and its size."""
        port = self._controller_port or self.broker.port
        with socket.create_connection((self.broker.host, port), timeout=5) as connection:
            connection.settimeout(ANSWER_S)
            try:
                connection.sendall(frame)
            except OSError:
                return "closed", 0
            connection.settimeout(0.05)
            return self._receive(attack, connection)

    def _receive(self, attack: Attack, connection: socket.socket) -> tuple[str, int]:
        data = bytearray()
        size, received = -1, 0
        began = time.monotonic()
        quiet_looks, last_cpu = self._looks(), self.broker.cpu_seconds()
        while size < 0 or received < size + 4:
            try:
                piece = connection.recv(READ_BYTES)
            except TimeoutError:
                now, cpu = time.monotonic(), self.broker.cpu_seconds()
                if cpu - last_cpu > IDLE_SHARE * 0.05:
                    quiet_looks = self._looks()
                last_cpu = cpu
                if self._looks() - quiet_looks > QUIET_LOOKS:
                    return ("no answer" if _has_none(attack) else "waits"), received
                if now - began > ANSWER_S:
                    return f"no answer in {ANSWER_S:.0f} s", received
                continue
            except ConnectionError:
                return "closed", received
            if not piece:
                return "closed", received
            received += len(piece)
            if len(data) < DECODED_BYTES:
                data += piece
            if size < 0 and len(data) >= 4:
                (size,) = struct.unpack_from(">i", data)
            quiet_looks = self._looks()
        if size > DECODED_BYTES - 4:
            return f"{size / 1e6:.1f} MB", size
        return error_in(attack, memoryview(data)[4 : 4 + size]), size

    def _looks(self) -> int:
        return 0 if self._account is None else self._account.read().looks

    def _settle(self) -> None:
        """Until the process is nearly idle."""
        deadline = time.monotonic() + SETTLE_S
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        cpu = self.broker.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            last, cpu = cpu, self.broker.cpu_seconds()
            if cpu - last <= tick_s:
                return


def _has_none(attack: Attack) -> bool:
    """Whether a Produce request with acks=0 may be meant."""
    return attack.api_key == 0


def peak_bytes(pid: int) -> int:
    """The largest resident set since the last reset; 0 of a process that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def error_in(attack: Attack, frame: memoryview) -> str:
    """The first error code of a response, by name; "answer" if it has none."""
    try:
        _, position = decode_response_header(frame, attack.api_key, attack.version)
        version = attack.version
        answer, _ = decode(response_class(attack.api_key), frame, version, position)
    except KafkaError as error:
        return f"an answer that cannot be read: {error}"
    code = first_error(answer)
    return ErrorCode(code).name if code else "answer"
