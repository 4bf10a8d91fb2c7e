"""`GroupOffsets`: the offsets of a streaming query as those of a consumer group.

    offsets = GroupOffsets("reports", "localhost:9092")
    offsets.follow(spark, query)

A listener takes what each batch has reached once Spark has committed the batch, and a thread of its
own commits it to the group, so that neither the query nor Spark's other listeners wait for it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..checkpoint import Offsets
from ..errors import JobError
from ..kafka_source import DEFAULT_BOOTSTRAP
from ..progress import listen, parse_progress
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.connection import OpenSocket, open_plain_socket
from .committer import Committer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryListener

logger = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""How long after a failed commit the next one is tried, if no batch ends before."""

ATTEMPT_S: Final = 10.0
"""How long one commit may take."""


class GroupOffsets:
    """A consumer group that shows how far a query has read: in `kbroker groups lag`, in Kafka's
    tools and in whatever monitors groups. It has no members.

    bootstrap_servers: of the cluster that the query reads. topics: those whose offsets are
    committed, all of the query's Kafka sources by default; to be named if the query reads another
    cluster too. open_socket: see `OpenSocket`, for TLS and SASL.
    """

    def __init__(
        self,
        group: str,
        bootstrap_servers: str = DEFAULT_BOOTSTRAP,
        *,
        topics: Sequence[str] = (),
        open_socket: OpenSocket = open_plain_socket,
    ) -> None:
        """Nothing is connected to. Raises JobError for a group or servers that cannot be."""
        if not group:
            raise JobError("the name of the group is empty")
        self.group = group
        self._topics = frozenset(topics)
        self._address = replace(
            ClusterAddress(bootstrap_servers),
            open_socket=open_socket,
            request_timeout_s=ATTEMPT_S,
            retry_timeout_s=ATTEMPT_S,
        )
        self._committer = Committer(self._new_client(), group)
        self._changed = threading.Condition()
        self._ends: Offsets = {}
        self._batch_id = -1
        self._number = 0
        """Of the offsets in _ends, counted up; _done: of the newest that a commit was tried for."""
        self._done = 0
        self._is_committed = True
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self._listener: StreamingQueryListener | None = None

    def _new_client(self) -> BlockingClient:
        return BlockingClient(self._address)

    def check(self) -> None:
        """Raises StartRefused if the group has live members or is a share group, JobError if it may
        not be described. A cluster that does not answer is reported only.
        """
        checking = Committer(self._new_client(), self.group)
        checking.trouble = self._committer.trouble  # which was reported
        try:
            checking.check()
        finally:
            checking.close()
        self._committer.trouble = checking.trouble

    def follow(self, spark: SparkSession, query: StreamingQuery) -> Self:
        """Commit what the query has read, from now on after each batch, until `close`. To be called
        again for a query that was started again. Raises as `check`; the query is left as it is.
        """
        if self._is_closing:
            raise JobError(f"the offsets of group {self.group} were closed: make new ones")
        self.check()
        self._take_last()  # of the query that was followed before
        self._unlisten()
        self._spark, self._query, self._batch_id = spark, query, -1
        self._listener = listen(spark, self, run_id=str(query.runId))
        self._take_last()
        return self

    def close(self, timeout_s: float = 2 * ATTEMPT_S) -> bool:
        """Commit what the query has reached, and end. Returns whether the group has all of it."""
        self._take_last()
        self._unlisten()
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            return self._is_committed and self._done == self._number

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # the listener's thread

    def batch(self, entry: Mapping[str, Any]) -> None:
        """See `progress.Watcher`."""
        batch = parse_progress(entry)
        ends = batch.end
        if self._topics:
            ends = {topic: each for topic, each in ends.items() if topic in self._topics}
        with self._changed:
            is_newest = batch.batch_id >= self._batch_id
            self._batch_id = max(self._batch_id, batch.batch_id)
        if ends and is_newest:  # `_take_last` may have been faster than an event
            self._offer(ends)

    def idle(self) -> None:
        """See `progress.Watcher`. The committer sees whether it is time to commit again."""
        with self._changed:
            ends = self._ends
        if ends:
            self._offer(ends)

    def ended(self) -> None:
        """See `progress.Watcher`. What the last batch has reached was told before."""

    def _offer(self, ends: Offsets) -> None:
        with self._changed:
            if self._is_closing:
                return
            self._ends = ends
            self._number += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"offsets of group {self.group}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _take_last(self) -> None:
        """Batches that ended before the listener was there, or whose events are on their way."""
        progress = None
        if self._query is not None:
            with suppress(Exception):  # py4j's, where the JVM has ended
                progress = self._query.lastProgress
        if progress is not None:
            self.batch(json.loads(progress.json))

    def _unlisten(self) -> None:
        spark, listener = self._spark, self._listener
        self._listener = None
        if spark is not None and listener is not None:
            with suppress(Exception):  # py4j's, where the JVM has ended
                spark.streams.removeListener(listener)

    # the thread that commits

    def _run(self) -> None:
        try:
            while (offered := self._next()) is not None:
                number, ends = offered
                is_committed = self._commit(ends)
                with self._changed:
                    self._done, self._is_committed = number, is_committed
        finally:
            self._committer.close()

    def _next(self) -> tuple[int, Offsets] | None:
        """The newest offsets; None at the end. Those that could not be committed come again."""
        with self._changed:
            while self._done == self._number:
                if self._is_closing:
                    return None
                if not self._changed.wait(None if self._is_committed else RETRY_S):
                    break
            return self._number, self._ends

    def _commit(self, ends: Offsets) -> bool:
        try:
            return self._committer.commit(ends)
        except Exception:  # a query is not to suffer from it
            logger.exception("group %s: offsets cannot be committed", self.group)
            return False
