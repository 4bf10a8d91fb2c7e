"""A conversation of its own about transactions: every request in every state, by the producer
itself, by its former self, by one of the future and by a stranger; markers; sequences.

After what may change a transaction it is described, so the recorded answers also say in which
state, with which epoch and partitions, it was left. What is asked while a transaction is prepared
is a second conversation, with a broker whose markers do not arrive: Kafka's does not find its own
listener (`without_itself`), ours has lost the directory of topic `held` (`lose_held`).
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.e2e.wire import call
from tests.reference.step import State, Step
from tests.reference.transaction_requests import (
    GROUP,
    Build,
    Who,
    add,
    add_offsets,
    commit_offsets,
    describe,
    describe_producers,
    end,
    end_offset,
    fetch,
    former,
    future,
    init,
    itself,
    markers,
    offsets_of,
    older,
    produce,
    raise_epoch,
    stranger,
)

OVERRIDES: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
LAST_EPOCH: Final = 0x7FFF
STATES: Final = ("Empty", "Ongoing", "Commit", "Abort")
PREPARED: Final = ("PrepareCommit", "PrepareAbort")
Serve = Callable[[dict[str, str]], AbstractContextManager[Any]]
"""A broker with these overrides; it has a port."""
Requests = tuple[tuple[str, int, Build], ...]
"""What is asked, in which version."""


# Markers that do not arrive


def make_held(port: int) -> None:
    """Make topic `held`, as soon as the broker can."""
    kind = CreateTopicsRequest
    held = kind.CreatableTopic(name="held", num_partitions=1, replication_factor=1)
    deadline = time.monotonic() + 30
    while True:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            answer: Any = call(connection, kind(topics=[held], timeout_ms=10_000), 7)
        if answer.topics[0].error_code == ErrorCode.NONE:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"held is not made: {answer}")
        time.sleep(0.2)


def without_itself(port: int, controller: int, closed: int) -> dict[str, str]:
    """Overrides for a Kafka on this port that looks for itself on a closed one."""
    internal = "INTERNAL://127.0.0.1"
    return {
        **OVERRIDES,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},{internal}:0,"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},{internal}:{closed}",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
    }


def two_directories(folder: Path) -> dict[str, str]:
    """The overrides for a broker on two log directories of the folder."""
    return {**OVERRIDES, "log.dirs": f"{folder / 'd1'},{folder / 'd2'}"}


def lose_held(folder: Path, serve: Serve) -> None:
    """Let a broker make topic `held` in the second directory, and break that."""
    cordoned = {**two_directories(folder), "cordoned.log.dirs": str(folder / "d1")}
    with serve(cordoned) as server:
        make_held(server.port)
    shutil.rmtree(folder / "d2")
    (folder / "d2").write_text("no directory")


# Steps


class Talk:
    """Makes steps about one transactional id after the other."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def _name(self, name: str) -> str:
        number = self._count[name] = self._count.get(name, 0) + 1
        return f"{name} #{number}" if number > 1 else name

    def ask(
        self,
        name: str,
        what: str,
        version: int,
        build: Build,
        who: Who = itself,
        *,
        keeps: bool = False,
        settles: bool = False,
    ) -> Step:
        """keeps: the answer's producer id and epoch are the id's own from now on. settles: asked
        again while the coordinator is busy.
        """

        def keep(state: State, answer: Any) -> None:
            if answer.error_code == ErrorCode.NONE and answer.producer_id >= 0:
                state.producers[name] = answer.producer_id, answer.producer_epoch

        title = f"{name}: {what} v{version}" + ("" if who is itself else f" as {who.__name__}")
        return Step(
            self._name(title),
            version,
            lambda state: build(state, name, who),
            keep if keeps else None,
            again=is_busy if settles else None,
        )

    def look(self, *names: str, settles: bool = True) -> Step:
        """settles: wait until what is prepared is complete."""
        return Step(
            self._name(f"describe {', '.join(names)}"),
            0,
            describe(*names),
            again=is_prepared if settles else None,
        )


def is_busy(answer: Any) -> bool:
    """Whether a producer asks again."""
    codes = (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
    results = getattr(answer, "results_by_topic_v3_and_below", None) or []
    found = {part.partition_error_code for topic in results for part in topic.results_by_partition}
    return getattr(answer, "error_code", 0) in codes or not found.isdisjoint(codes)


def is_prepared(answer: Any) -> bool:
    return any(found.transaction_state.startswith("Prepare") for found in answer.transaction_states)


def to_state(talk: Talk, name: str, wanted: str, version: int) -> Iterator[Step]:
    """A new id in this state, ended with that EndTxn."""
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    if version >= 5:  # so that an epoch below its own was one
        yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    if wanted != "Empty":
        place = "held" if wanted.startswith("Prepare") else "out"
        yield talk.ask(name, "add", 3, add((place, 0)), settles=True)
    if wanted not in ("Empty", "Ongoing"):
        commit = wanted.endswith("Commit")
        yield talk.ask(name, "end", version, end(commit=commit), keeps=True)
        yield talk.look(name, settles=not wanted.startswith("Prepare"))


STRANGERS: Final = (older, future, stranger)
ASKED: Final[Requests] = (
    ("add", 0, add(("out", 1))),
    ("add", 3, add(("out", 1))),
    ("verify", 4, add(("out", 0), ("out", 1), version=4, verify=True)),
    ("offsets", 0, add_offsets),
    ("offsets", 4, add_offsets),
    ("commit offsets", 3, commit_offsets()),
    ("commit offsets", 4, commit_offsets()),
    ("commit offsets", 5, commit_offsets()),
    ("produce", 11, produce("out", 1, 0)),
    ("produce", 12, produce("out", 1, 0)),
    ("commit", 0, end(commit=True)),
    ("commit", 3, end(commit=True)),
    ("abort", 4, end(commit=False)),
    ("commit", 5, end(commit=True)),
    ("abort", 5, end(commit=False)),
    ("raise the epoch", 3, raise_epoch),
    ("raise the epoch", 4, raise_epoch),
)
"""Of strangers it is refused in every state, and nothing is changed."""
ASKED_OF_COORDINATOR: Final = tuple(
    one for one in ASKED if one[0] not in ("produce", "commit offsets")
)
"""A Kafka that does not find itself cannot ask its coordinator about the others."""


def stranger_steps(talk: Talk, states: tuple[str, ...], asked: Requests) -> Iterator[Step]:
    for wanted in states:
        name = f"strangers-{wanted}"
        yield from to_state(talk, name, wanted, 3)
        for who in STRANGERS:
            for what, version, build in asked:
                if who is not stranger and what == "raise the epoch" and wanted == "Ongoing":
                    continue  # Kafka aborts the transaction: see stale_steps
                yield talk.ask(name, what, version, build, who)
        yield talk.look(name, settles=False)


def own_steps(talk: Talk, states: tuple[str, ...], asked: Requests) -> Iterator[Step]:
    """What the producer itself asks, in each state; and with the epoch it had before."""
    settles = states is not PREPARED
    for version in (3, 5):
        for wanted in states:
            for who in (itself, former):
                for commit in (True, False):
                    word = "commit" if commit else "abort"
                    name = f"{word}-{wanted}-v{version}-{who.__name__}"
                    yield from to_state(talk, name, wanted, version)
                    yield talk.ask(name, word, version, end(commit=commit), who)
                    yield talk.look(name, settles=settles)
    for what, version, build in asked:
        if what in ("commit", "abort"):
            continue
        for wanted in states:
            name = f"{what}-v{version}-{wanted}"
            yield from to_state(talk, name, wanted, 5)
            yield talk.ask(name, what, version, build)
            yield talk.look(name, settles=settles)
    for wanted in states:
        name = f"init-{wanted}"
        yield from to_state(talk, name, wanted, 5)
        yield talk.ask(name, "init", 4, init())
        if settles:
            yield talk.look(name)
            yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
            yield talk.look(name)
            yield talk.ask(name, "commit", 4, end(commit=True), former)


def retry_steps(talk: Talk) -> Iterator[Step]:
    """The answer was lost, and the client asks again."""
    for version in (3, 5):
        for commit in (True, False):
            word = "commit" if commit else "abort"
            name = f"lost-{word}-v{version}"
            yield from to_state(talk, name, "Commit" if commit else "Abort", version)
            who = former if version >= 5 else itself
            yield talk.ask(name, word, version, end(commit=commit), who)
            yield talk.ask(name, "the other", version, end(commit=not commit), who)
            yield talk.ask(name, "add", 3, add(("out", 0)), settles=True)
            yield talk.ask(name, word, version, end(commit=commit), who)
            yield talk.look(name)
    name = "lost-raise"
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    yield talk.ask(name, "raise the epoch", 4, raise_epoch, keeps=True)
    for _ in range(2):
        yield talk.ask(name, "raise the epoch", 4, raise_epoch, former)
    yield talk.ask(name, "raise the epoch", 4, raise_epoch, older)
    yield talk.look(name)


def stale_steps(talk: Talk) -> Iterator[Step]:
    """A producer that was replaced wants a new epoch while its successor has a transaction open."""
    name = "stale"
    yield from to_state(talk, name, "Ongoing", 5)
    yield talk.ask(name, "raise the epoch", 4, raise_epoch, former)
    yield talk.look(name)


def partition_steps(talk: Talk) -> Iterator[Step]:
    """Partitions that do not exist, were never added, or are added twice."""
    name = "partitions"
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    for version in (0, 3):
        yield talk.ask(name, "unknown", version, add(("nosuch", 0), ("out", 0), version=version))
        yield talk.ask(name, "unknown index", version, add(("out", 9), version=version))
    yield talk.ask(name, "nothing", 3, add())
    yield talk.look(name, settles=False)
    yield talk.ask(name, "never added", 11, produce("out", 2, 0))
    yield talk.ask(name, "never added", 9, produce("out", 2, 0))
    yield talk.ask(name, "add", 3, add(("out", 2)))
    yield talk.ask(name, "add again", 3, add(("out", 2)))
    yield talk.ask(name, "added", 11, produce("out", 2, 0, 2))
    yield talk.ask(name, "other one", 11, produce("out", 1, 0))
    yield talk.ask(name, "other one", 9, produce("out", 1, 0))
    yield talk.ask(name, "verify", 4, add(("out", 2), ("out", 1), version=4, verify=True))
    yield talk.ask(name, "group never added", 3, commit_offsets("other-group"))
    yield talk.ask(name, "no transactional id", 11, produce("out", 2, 2, said=None))
    yield talk.ask(name, "another's id", 11, produce("out", 2, 2, said="strangers-Ongoing"))
    yield talk.ask(name, "an unknown id", 11, produce("out", 1, 0, said="nobody"))
    yield talk.ask(name, "outside", 11, produce("out", 2, 2, said=None, is_transactional=False))
    yield talk.ask(name, "gap", 11, produce("out", 2, 3))
    yield talk.ask(name, "again", 11, produce("out", 2, 0, 2))
    yield talk.ask(name, "in part", 11, produce("out", 2, 1, 1))
    yield talk.ask(name, "next", 11, produce("out", 2, 2))
    yield talk.ask(name, "late", 11, produce("out", 2, 3), former)
    yield talk.ask(name, "early", 11, produce("out", 2, 0), future)
    yield talk.look(name, settles=False)
    yield Step("producers of a transaction", 0, describe_producers(("out", 2)))
    yield Step("stable end", 7, end_offset("out", 2, 1))
    yield Step("end", 7, end_offset("out", 2, 0))
    yield talk.ask(name, "abort", 4, end(commit=False))
    yield talk.look(name)
    yield Step("aborted", 11, fetch("out", 2))
    yield Step("producers afterwards", 0, describe_producers(("out", 2)))
    yield talk.ask(name, "after the end", 11, produce("out", 2, 3))
    yield talk.ask(name, "by itself", 12, produce("out", 2, 3))
    yield talk.look(name, settles=False)
    yield talk.ask(name, "commit", 5, end(commit=True), keeps=True)
    yield talk.look(name)
    yield talk.ask(name, "a new epoch not from 0", 12, produce("out", 2, 4))
    yield talk.ask(name, "a new epoch", 12, produce("out", 2, 0))
    yield talk.ask(name, "commit", 5, end(commit=True), keeps=True)
    yield talk.look(name)
    yield Step("both", 11, fetch("out", 2))
    name = "fresh"
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    yield talk.ask(name, "not from 0", 12, produce("out", 1, 4))
    yield talk.ask(name, "from 0", 12, produce("out", 1, 0))
    yield talk.ask(name, "commit", 5, end(commit=True), keeps=True)
    yield talk.look(name)
    for what, build in (("add", add(("out", 0))), ("end", end(commit=True))):
        yield talk.ask("", what, 3, build, lambda _state, _name: (1, 0))
        yield talk.ask("nobody", what, 3, build, lambda _state, _name: (1, 0))
    yield talk.ask("", "init", 4, init())
    for timeout_ms in (0, -1, 900_001):
        yield talk.ask("timeout", f"init {timeout_ms}", 4, init(timeout_ms))


def offset_steps(talk: Talk) -> Iterator[Step]:
    """Offsets inside a transaction."""
    name = "offsets"
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    yield talk.ask(name, "no group", 5, commit_offsets(""))
    yield talk.ask(name, "unknown topic", 5, commit_offsets(topic="nosuch"))
    yield talk.ask(name, "a member", 5, commit_offsets(member_id="m", generation_id=1))
    yield talk.ask(name, "a generation", 5, commit_offsets(generation_id=1))
    for version, how in ((5, True), (5, False), (3, True), (3, False)):
        group = f"{GROUP}-{version}-{how}"
        if version < 5:
            yield talk.ask(
                name,
                "add",
                4,
                lambda state, name, who, group=group: AddOffsetsToTxnRequest(
                    transactional_id=name,
                    producer_id=who(state, name)[0],
                    producer_epoch=who(state, name)[1],
                    group_id=group,
                ),
                settles=True,
            )
        yield talk.ask(name, "commit offsets", version, commit_offsets(group))
        yield Step(f"{group} pending", 9, offsets_of(group, stable=False))
        yield Step(f"{group} pending, stable", 9, offsets_of(group, stable=True))
        yield talk.ask(name, "end", version, end(commit=how), keeps=True)
        yield talk.look(name)
        yield Step(f"{group} afterwards", 9, offsets_of(group, stable=True))


def marker_steps(talk: Talk) -> Iterator[Step]:
    """Markers of coordinators old and new, of epochs old and new, for partitions with and without
    a transaction.
    """
    name, place = "marked", ("marks", 0)
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    yield talk.ask(name, "init", 4, init(), keeps=True, settles=True)
    yield talk.ask(name, "open", 12, produce("marks", 0, 0), settles=True)
    first = markers(place, commit=False, coordinator_epoch=5)
    yield talk.ask(name, "marker", 1, first, former)
    yield talk.ask(
        name, "marker", 2, markers(place, commit=False, coordinator_epoch=5, transaction_version=2)
    )
    yield Step("still open", 0, describe_producers(place))
    yield talk.ask(
        name, "nowhere", 1, markers(("nosuch", 0), ("marks", 9), commit=False, coordinator_epoch=5)
    )
    yield talk.ask(name, "no leader", 1, markers(("held", 0), commit=False, coordinator_epoch=5))
    yield talk.ask(name, "nothing", 1, markers(commit=False, coordinator_epoch=5))
    yield talk.ask(name, "marker", 1, first)
    yield Step("ended", 0, describe_producers(place))
    yield talk.ask(name, "again", 1, first)
    yield talk.ask(
        name, "of an older coordinator", 1, markers(place, commit=True, coordinator_epoch=4)
    )
    yield talk.ask(
        name,
        "a later epoch",
        2,
        markers(place, commit=True, coordinator_epoch=6, transaction_version=2),
        future,
    )
    yield talk.ask(
        name,
        "again",
        2,
        markers(place, commit=True, coordinator_epoch=6, transaction_version=2),
        future,
    )
    yield talk.ask(
        name,
        "without a transaction",
        1,
        markers(("marks", 1), commit=False, coordinator_epoch=0),
        stranger,
    )
    yield Step("marks", 0, describe_producers(place, ("marks", 1)))
    yield Step("aborted marks", 11, fetch("marks", 0))


def list_steps(talk: Talk) -> Iterator[Step]:
    kind = ListTransactionsRequest
    yield Step("list v0", 0, lambda _: kind())
    for states in (
        ["Ongoing"],
        ["PrepareCommit", "PrepareAbort"],
        ["Nonsense"],
        ["ongoing"],
        ["Nonsense", "Empty"],
        ["Dead", "PrepareEpochFence"],
    ):
        yield Step(f"list {states}", 1, lambda _, states=states: kind(state_filters=states))
    yield Step(
        "list a producer",
        1,
        lambda s: kind(producer_id_filters=[s.producers["strangers-Ongoing"][0]]),
    )
    yield Step("list no producer", 1, lambda _: kind(producer_id_filters=[10_000_000]))
    for ms in (0, 3_600_000):
        yield Step(
            f"list {ms} ms", 1, lambda _, ms=ms: kind(duration_filter=ms, state_filters=["Ongoing"])
        )
    for pattern in ("strangers-.*", "", "strangers", "(", ".*-Empty"):
        yield Step(
            f"list like {pattern!r}", 2, lambda _, p=pattern: kind(transactional_id_pattern=p)
        )
    yield Step("describe nobody", 0, describe("nobody", "", "strangers-Ongoing"))


def begin() -> Iterator[Step]:
    kind = CreateTopicsRequest
    topics = [
        kind.CreatableTopic(name="out", num_partitions=3, replication_factor=1),
        kind.CreatableTopic(name="marks", num_partitions=2, replication_factor=1),
    ]
    request = kind(topics=topics, timeout_ms=10_000)
    yield Step("topics", 7, lambda _: request, awaits=("out", "marks"))
    yield Step(
        "no transaction", 4, lambda _: InitProducerIdRequest(transactional_id=None), again=is_busy
    )
    yield Step(
        "coordinator",
        6,
        lambda _: FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"]),
        again=lambda answer: any(found.error_code for found in answer.coordinators),
    )


def transaction_steps() -> Iterator[Step]:
    """The whole conversation but what is asked while a transaction is prepared."""
    yield from begin()
    talk = Talk()
    yield from stranger_steps(talk, STATES, ASKED)
    yield from own_steps(talk, STATES, ASKED)
    for part in (
        retry_steps,
        partition_steps,
        offset_steps,
        marker_steps,
        list_steps,
        stale_steps,
    ):
        yield from part(talk)


def prepared_steps() -> Iterator[Step]:
    """What is asked while a transaction is prepared."""
    yield from begin()
    talk = Talk()
    yield from stranger_steps(talk, PREPARED, ASKED_OF_COORDINATOR)
    yield from own_steps(talk, PREPARED, ASKED_OF_COORDINATOR)
    kind = ListTransactionsRequest
    for state in PREPARED:
        yield Step(f"list {state}", 1, lambda _, state=state: kind(state_filters=[state]))
