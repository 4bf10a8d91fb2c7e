"""One writer for a folder: a small file says which process writes, and is renewed while it does.

On the same machine, and in the same PID namespace, a process that is gone gives way at once. Any
other process gives way when its file has not been renewed for STALE_MS. `check_lease` before each
commit ends a writer whose file was taken over, for example after it was stopped and continued.

A process that starts writes a claim (`NAME.LEASE_ID`) before it looks at claims and then at the
file, and deletes it when the file is its own. So of two that start at once, one sees the other;
both may be refused.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .errors import StartRefused
from .storage import Folder

RENEW_S: Final = 10.0
STALE_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that writes. host: `this_host` of it. started: tells it from a later process of
    the same id.
    """

    lease_id: str
    host: str
    pid: int
    started: str
    renewed_ms: int

    @property
    def machine(self) -> str:
        """The machine's name, for messages."""
        return self.host.partition(" ")[0]


def this_host() -> str:
    """Where this process's id means this process: the machine's name, its boot, and the PID
    namespace, of which each container has its own. A system without /proc has the name only.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [_boot_id(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def conflict(held: Holder, host: str, now_ms: int, started_of_pid: str | None) -> str | None:
    """Why a process on `host` (see `this_host`) may not write, None if it may. started_of_pid: when
    the process with the holder's id here started, None if there is none.
    """
    if held.host == host:
        if started_of_pid != held.started:
            return None
        return f"process {held.pid} of this machine writes to it"
    age_ms = now_ms - held.renewed_ms
    if age_ms >= STALE_MS:
        return None
    return (
        f"process {held.pid} on {held.machine} wrote to it {max(age_ms, 0) / 1000:.0f} s ago "
        f"(if it is gone, wait {(STALE_MS - age_ms) / 1000:.0f} s)"
    )


def started_of(pid: int) -> str | None:
    """When a process of this machine started, as the machine tells it; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A zombie writes nothing.
        return None if fields[0] in "ZX" else f"{_boot_id()}-{fields[19]}"
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # a system without /proc: only whether it runs
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "running"
    return "running"


class Lease:
    """The right to write to a folder, from `acquire` until `release`."""

    def __init__(self, folder: Folder, name: str, options: str = "--output") -> None:
        """options: those that a second writer has to change."""
        self._folder = folder
        self._name = name
        self._options = options
        self.lease_id = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self) -> None:
        """Raises StartRefused while another process holds it, or is about to."""
        claim = f"{self._name}.{self.lease_id}"
        self._write(claim)
        try:
            self._refuse_claims(claim)
            # After the claims: a process deletes its claim only when the file says that it writes.
            refuse_second_writer(self._folder, self._name, self._options)
            self._write(self._name)
        finally:
            self._folder.delete(claim)
        self._thread.start()

    def _refuse_claims(self, own: str) -> None:
        """Raises StartRefused for a claim of another process; deletes those of processes that are
        gone.
        """
        parent, _, name = self._name.rpartition("/")
        for found in self._folder.names(parent):
            claim = f"{parent}/{found}".lstrip("/")
            if claim == own or not found.startswith(f"{name}."):
                continue
            refuse_second_writer(self._folder, claim, self._options)
            self._folder.delete(claim)

    def release(self) -> None:
        """Give way; no effect if another process has taken over."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        held = read_holder(self._folder, self._name)
        if held is not None and held.lease_id == self.lease_id:
            self._folder.delete(self._name)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            try:
                held = read_holder(self._folder, self._name)
                if held is None or held.lease_id != self.lease_id:
                    return
                self._write(self._name)
            except OSError:  # the batch that needs the folder says so
                continue

    def _holder(self) -> Holder:
        pid = os.getpid()
        return Holder(self.lease_id, this_host(), pid, started_of(pid) or "", _now_ms())

    def _write(self, name: str) -> None:
        self._folder.write(name, json.dumps(asdict(self._holder())).encode())


def read_holder(folder: Folder, name: str) -> Holder | None:
    """Who holds a folder; None if no process does."""
    content = folder.read(name)
    if content is None:
        return None
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def check_lease(
    folder: Folder,
    name: str,
    lease_id: str,
    outcome: str = "nothing of its batch is visible",
) -> None:
    """Raises StartRefused if another process has taken over the folder. outcome: what that means
    for the run, for the message.
    """
    held = read_holder(folder, name)
    if held is None or held.lease_id != lease_id:
        by = f"process {held.pid} on {held.machine}" if held is not None else "another process"
        raise StartRefused(f"{by} has taken over {folder}: this run ends; {outcome}")


def refuse_second_writer(folder: Folder, name: str, options: str = "--output") -> None:
    """Raises StartRefused while another process holds the folder. options: as in `Lease`."""
    held = read_holder(folder, name)
    if held is None:
        return
    reason = conflict(held, this_host(), _now_ms(), started_of(held.pid))
    if reason is not None:
        raise StartRefused(
            f"a second writer to {folder}: {reason}. Two would repeat each other's records: stop "
            f"that one first, or name another {options}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
