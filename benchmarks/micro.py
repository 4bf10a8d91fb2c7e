"""Micro-benchmarks by pyperf: codec, append, fetch, heartbeat of a group.

    python benchmarks/micro.py [-o FILE.json] [--fast]      then: python -m pyperf compare_to A B

pyperf starts processes of its own and says how much the figures spread. Over a socket: `wire_cost`;
with instructions and calls counted: `hot_path`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyperf

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import codec  # noqa: E402
from benchmarks.hot_path import Bench, Produced, fetch_frame, idle_session  # noqa: E402
from kbroker.protocol.codecs.codec import decode, encode, encode_parts  # noqa: E402
from kbroker.protocol.messages.fetch import FetchRequest  # noqa: E402
from kbroker.protocol.messages.produce import ProduceRequest  # noqa: E402
from tests.coordinator.group.consumers import Consumer  # noqa: E402
from tests.coordinator.simulation import World  # noqa: E402

VERSION = 12
MEMBERS = 5


def codecs(runner: pyperf.Runner) -> None:
    asked = encode(codec.fetch_request(), VERSION)
    runner.bench_func("decode Fetch, 100 partitions", decode, FetchRequest, asked, VERSION)
    answer = codec.fetch_response(codec.Payload(1 << 20))
    runner.bench_func("encode Fetch, 100 partitions", encode_parts, answer, VERSION)
    produced = encode(codec.produce_request(), VERSION)
    runner.bench_func("decode Produce, 100 partitions", decode, ProduceRequest, produced, VERSION)
    runner.bench_func("encode Produce, 100 partitions", encode, codec.produce_response(), VERSION)


def timed(requests: Produced) -> Callable[[int], float]:
    """Frames are made ready outside of what is measured."""

    def run(loops: int) -> float:
        spent = 0.0
        while loops > 0:
            requests.refill()
            count = min(loops, Produced.ROUND)
            started = time.perf_counter()
            for _ in range(count):
                requests()
            spent += time.perf_counter() - started
            loops -= count
        return spent

    return run


def requests(runner: pyperf.Runner, folder: Path) -> None:
    bench = Bench(folder / "six", 6)
    runner.bench_time_func("Produce, 6 x 16 KB", timed(Produced(bench, 6, 16, 1000)))
    runner.bench_time_func("Produce, 1 record of 100 B", timed(Produced(bench, 1, 1, 100)))
    Produced(bench, 6, 16, 1000)()
    whole = fetch_frame(6, session=(0, -1))
    runner.bench_func("Fetch, 6 x 16 KB", bench.request, whole)
    bench.close()
    bench = Bench(folder / "hundred", 100)
    runner.bench_func("Fetch, idle session of 100", idle_session(bench))
    bench.close()


def heartbeats(runner: pyperf.Runner) -> None:
    world = World()
    members = [Consumer(world, f"m{i}") for i in range(MEMBERS)]
    for _ in range(20):
        for member in members:
            member.poll()
        world.timers.advance(1_000)
    runner.bench_func("heartbeat of a consumer group's member", members[0].poll)


def main() -> None:
    runner = pyperf.Runner(processes=5)
    runner.metadata["description"] = "kbroker: codec, append, fetch, heartbeat"
    codecs(runner)
    with tempfile.TemporaryDirectory() as folder:
        requests(runner, Path(folder))
    heartbeats(runner)


if __name__ == "__main__":
    main()
