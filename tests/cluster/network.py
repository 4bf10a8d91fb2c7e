"""A network of its own for each node: namespaces, joined by veth pairs to a bridge.

The bridge is in a namespace too, so the machine's own network is not touched and the addresses
cannot collide with another run's. A cut is one-way: the receiver drops packets of one sender
(`ip rule ... blackhole`), and the sender gets no error, as on a real network. The rule must come
before the lookup of local addresses, and sockets must not skip it (`ip_early_demux`).

Needs root and Linux (`network_problem`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.cluster.run_names import NAMESPACES, remove_namespace

SWITCH: Final = "switch"
INTERFACE: Final = "eth0"
EARLY_DEMUX: Final = Path("/proc/sys/net/ipv4/ip_early_demux")
CLONE_NEWNET: Final = 0x4000_0000
CUT_PREFERENCE: Final = 10
LOCAL_PREFERENCE: Final = 100


def network_problem() -> str | None:
    """None if namespaces can be made here, else one line that says why not."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces and mounts need Linux and root"
    missing = [name for name in ("ip", "mount", "umount") if shutil.which(name) is None]
    return f"needs the commands {', '.join(missing)}" if missing else None


class Network:
    """One namespace per member. run: the beginning of their names. members: of letters, digits and
    underscores.
    """

    def __init__(self, run: str, members: Sequence[str]) -> None:
        self._run = run
        self.addresses = {
            name: f"10.77.{number // 250}.{number % 250 + 1}" for number, name in enumerate(members)
        }
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def namespace(self, member: str) -> str:
        """The name of its network namespace."""
        return f"{self._run}-{member}"

    def command(self, member: str) -> list[str]:
        """What to put before a command line to run it inside."""
        return ["ip", "netns", "exec", self.namespace(member)]

    def __enter__(self) -> Self:
        try:
            self._create()
        except BaseException:
            self.remove()
            raise
        return self

    def _create(self) -> None:
        switch = self.namespace(SWITCH)
        _ip([f"netns add {self.namespace(name)}" for name in (SWITCH, *self.addresses)])
        _ip(["link add bridge type bridge", "link set bridge up"], switch)
        _ip(
            [
                f"link add {INTERFACE} netns {self.namespace(name)} type veth "
                f"peer name port{number} netns {switch}"
                for number, name in enumerate(self.addresses)
            ]
        )
        _ip(
            [
                f"link set port{number} master bridge up"
                for number, name in enumerate(self.addresses)
            ],
            switch,
        )
        hardware = {
            name: f"02:00:00:00:{number // 256:02x}:{number % 256:02x}"
            for number, name in enumerate(self.addresses)
        }
        for name, address in self.addresses.items():
            _ip(
                [
                    f"link set {INTERFACE} address {hardware[name]}",
                    f"address add {address}/16 dev {INTERFACE}",
                    "link set lo up",
                    f"link set {INTERFACE} up",
                    f"rule add pref {LOCAL_PREFERENCE} lookup local",
                    "rule del pref 0",
                    # A member that drops another's packets would not answer its ARP requests.
                    *(
                        f"neighbour add {self.addresses[other]} lladdr {hardware[other]} "
                        f"dev {INTERFACE} nud permanent"
                        for other in self.addresses
                        if other != name
                    ),
                ],
                self.namespace(name),
            )
            with self.entered(name):
                EARLY_DEMUX.write_text("0")

    def remove(self) -> None:
        """Kill what runs inside, then delete all namespaces. No effect the second time."""
        for name in (*self.addresses, SWITCH):
            namespace = self.namespace(name)
            if (NAMESPACES / namespace).exists():
                remove_namespace(namespace)

    def cut(self, source: str, target: str) -> None:
        """Nothing that source sends reaches target any more; the other direction stays. Ends with
        as many calls of `heal` as there were of this. Thread-safe, as is `heal`.
        """
        with self._lock:
            self._cuts[source, target] += 1
            if self._cuts[source, target] == 1:
                self._rule("add", source, target)

    def heal(self, source: str, target: str) -> None:
        """End what one call of `cut` began."""
        with self._lock:
            self._cuts[source, target] -= 1
            if self._cuts[source, target] == 0:
                self._rule("del", source, target)

    def _rule(self, verb: str, source: str, target: str) -> None:
        _ip(
            [
                f"rule {verb} from {self.addresses[source]} iif {INTERFACE} blackhole "
                f"pref {CUT_PREFERENCE}"
            ],
            self.namespace(target),
        )

    @contextmanager
    def entered(self, member: str) -> Iterator[None]:
        """The calling thread's new sockets belong to the member's network meanwhile."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            inside = os.open(NAMESPACES / self.namespace(member), os.O_RDONLY)
            try:
                _set_namespace(inside)
            finally:
                os.close(inside)
            try:
                yield
            finally:
                _set_namespace(before)
        finally:
            os.close(before)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def _ip(commands: Sequence[str], namespace: str | None = None) -> None:
    """Run `ip` commands in one process. Raises RuntimeError with what it printed."""
    inside = [] if namespace is None else ["-n", namespace]
    done = subprocess.run(
        ["ip", *inside, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(inside)}: {'; '.join(commands)}: {done.stderr.strip()}")


def _set_namespace(fd: int) -> None:
    """Move the calling thread; `os.setns` of Python 3.12."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
