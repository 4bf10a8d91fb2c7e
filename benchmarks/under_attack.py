"""An honest producer and consumer on a broker that is attacked over every API, and whose topics get
every configuration at its extremes, all at once.

    python -m benchmarks.under_attack [--seconds 600] [--seed 1]

Starts a broker with an account of its loop (`attack_broker`), `honest_clients`, `api_attack
--bootstrap`, and `tests.e2e.config_extremes`. Prints one report. Goal: no error, nothing lost, p99
of an acknowledgement under 100 ms, no traceback in the broker's log. The attacks run at a lower
priority: they stand for other machines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from benchmarks.attack_broker import LoopAccount
from benchmarks.attack_measure import peak_bytes
from benchmarks.attack_world import PROPERTIES
from kbroker.testing.process import BrokerProcess

GOAL_P99_MS: Final = 100.0
EXTREMES: Final = "tests.e2e.config_extremes"
NICENESS: Final = 10
WORST_KEPT: Final = 10
LOOK_S: Final = 1.0


class LoopWatch:
    """The longest turns of the broker's loop, one a second, and what it did in them."""

    def __init__(self, account: LoopAccount) -> None:
        self._account = account
        self._stopped = threading.Event()
        self.worst: list[tuple[float, float, str]] = []
        """CPU and elapsed time in seconds, and stacks."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            figures = self._account.read()
            self.worst.append(
                (figures.longest_cpu_s, figures.longest_stall_s, self._account.stacks())
            )
            self.worst = sorted(self.worst, reverse=True)[:WORST_KEPT]
            try:
                self._account.reset()
            except TimeoutError:
                self.worst.insert(0, (10.0, 10.0, "the loop did not look for 10 s"))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def start(
    module: str, bootstrap: str, seconds: float, *more: str, nice: bool
) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", module, "--bootstrap", bootstrap, "--seconds", str(seconds), *more,
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=(lambda: os.nice(NICENESS)) if nice else None,
    )


def run(folder: Path, seconds: float, seed: int) -> int:
    """The exit code."""
    account_path = folder / "account"
    account = LoopAccount(account_path)
    command = (sys.executable, "-m", "benchmarks.attack_broker", str(account_path))
    with BrokerProcess(folder / "data", overrides=PROPERTIES, command=command) as broker:
        idle = broker.resident_bytes()
        watch = LoopWatch(account)
        attacks = {
            "api_attack": start(
                "benchmarks.api_attack", broker.bootstrap_servers, seconds, "--seed", str(seed),
                nice=True,
            )
        }  # fmt: skip
        if importlib.util.find_spec(EXTREMES) is not None:
            attacks["config_extremes"] = start(
                EXTREMES, broker.bootstrap_servers, seconds, nice=True
            )
        time.sleep(min(5.0, seconds / 10))  # the honest ones come to a broker that is attacked
        honest = start(
            "benchmarks.honest_clients", broker.bootstrap_servers, max(1.0, seconds - 5), "--json",
            nice=False,
        )  # fmt: skip
        said = honest.communicate(timeout=seconds + 180)[0]
        outputs = {name: process.communicate(timeout=300)[0] for name, process in attacks.items()}
        watch.stop()
        peak, is_alive = peak_bytes(broker.pid), broker.running()
        code = broker.stop(60)
    log = broker.log.read_text(errors="replace")
    tracebacks = log.count("Traceback (most recent call last)")
    report = json.loads(said.splitlines()[-1])
    print(
        f"{seconds:.0f} s: {report['produced']} records acknowledged,"
        f" {report['consumed']} consumed, {report['lost']} lost, {report['duplicated']} twice,"
        f" {len(report['errors'])} errors"
    )
    for name, key in (("acknowledged", "ack_ms"), ("consumed", "end_to_end_ms")):
        told = ", ".join(f"{part} {value:.1f} ms" for part, value in report[key].items())
        print(f"{name} after: {told}")
    for error in report["errors"][:10]:
        print(f"error: {error}")
    print(f"broker: {idle / 1e6:.0f} MB at rest, {peak / 1e6:.0f} MB at most; exit code {code}")
    print(f"log: {len(log) / 1e6:.1f} MB, {tracebacks} tracebacks")
    for cpu_s, stall_s, where in watch.worst:
        print(f"longest turns: {cpu_s * 1000:.0f} ms CPU, {stall_s * 1000:.0f} ms elapsed")
        print("    " + where.replace("\n", "\n    "))
    for name, output in outputs.items():
        print(f"{name} (exit code {attacks[name].returncode}): {output.strip()[-2000:]}")
    if tracebacks:
        print(log[max(0, log.index("Traceback (most recent call last)") - 500) :][:4000])
    is_good = (
        honest.returncode == 0
        and is_alive
        and not tracebacks
        and report["ack_ms"]["p99"] < GOAL_P99_MS
    )
    return 0 if is_good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kbroker-under-attack-"))
    try:
        return run(folder, arguments.seconds, arguments.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
