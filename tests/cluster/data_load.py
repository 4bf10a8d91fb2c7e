"""A client that produces or consumes, in a process of its own.

    python -m tests.cluster.data_load confluent|aiokafka ROLE HOST:PORT,... NAME GROUP

Roles: `producer` writes to `events`, idempotent. `transactions` writes to several partitions of
`ledger` in transactions, of which it aborts every fourth, and commits an offset of `ledger-0` for
the group NAME in every other one. `member` of GROUP reads `events` and commits what it has read.
`reader` and `committed-reader` (confluent only) read both topics from the beginning, with the two
isolation levels.

Says what it does in the lines of `history_lines`; when standard input ends, it finishes what it has
begun, and ends. `DataLoad.java` is the same for Kafka's own clients.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from tests.cluster.history_lines import Value

EVENTS: Final = "events"
LEDGER: Final = "ledger"
PARTITIONS: Final = 3
"""Of each topic."""
PAUSE_S: Final = 0.02
"""Between records of a producer, and between transactions."""
MAX_UNACKNOWLEDGED: Final = 200
ABORTS: Final = 0.25
CALL_TIMEOUT_S: Final = 20.0
DELIVERY_TIMEOUT_MS: Final = 120_000
TRANSACTION_TIMEOUT_MS: Final = 15_000
SESSION_TIMEOUT_MS: Final = 6_000
FETCH_EVERY: Final = 10
"""Transactions between two looks at the committed offset."""
END_TIMEOUT_S: Final = 45.0
"""From the end of standard input to the end of the process, at most."""


def say(*words: object) -> None:
    """A line of `history_lines`, or a remark."""
    print(*(str(word).replace("\n", " ") for word in words), flush=True)


def now_ms() -> int:
    """The machine's monotonic clock."""
    return time.monotonic_ns() // 1_000_000


class Values:
    """The values of one producer's records."""

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._epoch = -1
        self._sequences: Counter[tuple[str, int]] = Counter()

    def begin_epoch(self) -> None:
        """The client library's producer is a new one."""
        self._epoch += 1
        self._sequences.clear()

    def next(self, topic: str, partition: int) -> Value:
        """For the next record to the partition."""
        sequence = self._sequences[topic, partition]
        self._sequences[topic, partition] += 1
        return Value(self._producer, self._epoch, topic, partition, sequence)


def data_of(value: Value) -> bytes:
    """The bytes of a record, of different lengths."""
    return str(value).encode() + b" " + b"x" * (value.sequence * 37 % 400)


def drawn_partitions() -> list[int]:
    """Those that a transaction writes to."""
    return random.sample(range(PARTITIONS), random.randint(1, PARTITIONS))


Role = Callable[[str, str, str, threading.Event], None]
"""Called with bootstrap servers, name and group; runs until the event is set."""


def roles_of(library: str) -> Mapping[str, Role]:
    """The roles of a library, which only its own processes import."""
    if library == "confluent":
        from tests.cluster.confluent_load import ROLES as confluent_roles

        return confluent_roles
    from tests.cluster.aiokafka_load import ROLES as aiokafka_roles

    return aiokafka_roles


def _end_with_input(stopping: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopping.set()
    time.sleep(END_TIMEOUT_S)
    say("ended by its time limit")
    os._exit(1)


def main() -> None:
    library, role, bootstrap, name, group = sys.argv[1:]
    stopping = threading.Event()
    threading.Thread(target=_end_with_input, args=[stopping], daemon=True).start()
    roles_of(library)[role](bootstrap, name, group, stopping)


if __name__ == "__main__":
    main()
