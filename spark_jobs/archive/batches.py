"""What happens in each batch: its records are stored, and the identity follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checkpoint import Offsets, batch_ends
from ..cluster import ClusterView, Subscription, look
from ..errors import JobError, StartRefused
from ..identity import read_identity, write_identity
from ..lease import check_lease
from ..running import StopRequested
from ..storage import Folder
from .commits import Commit
from .opening import LEASE, Opened, begin_of
from .start import read_again
from .stores import Batch, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class ArchiveBatches:
    """The function of the query's foreachBatch. Its state is in the output and the checkpoint, so
    it may run in another process than the one that made it (Spark Connect).

    is_stopping, on_commit: only called in the process that made it. files: written; dead: records
    that could not be decoded.
    """

    store: Store
    checkpoint: Folder
    query: Folder
    checkpoint_id: str
    query_number: int
    lease_id: str
    bootstrap_servers: str
    subscription: Subscription
    security_protocol: str
    is_stopping: Callable[[], bool] | None = None
    on_commit: Callable[[], None] | None = None
    failure: Exception | None = None
    files: int = 0
    dead: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_stopping": None, "on_commit": None, "failure": None}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Archive a batch, unless it is archived already. Raises JobError, StartRefused, OSError,
        StopRequested or what Spark raises; nothing of the batch is visible then, or all of it will
        be.
        """
        try:
            if self.is_stopping is not None and self.is_stopping():
                raise StopRequested
            self._archive(frame, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def _archive(self, frame: DataFrame, batch_id: int) -> None:
        output = self.store.folder
        commit = self.store.newest()
        if commit is None:
            raise _vanished(output)
        if (commit.checkpoint_id, commit.query) != (self.checkpoint_id, self.query_number):
            raise StartRefused(f"another run writes to {output}: this one ends")
        if commit.batch_id >= batch_id:  # stored; Spark was ended before it noted that
            return
        ends = self._ends(batch_id)
        again = read_again(self._begin(batch_id), ends, commit.positions)
        if again:
            raise StartRefused(f"{again}; nothing of this batch is visible")
        view = self._look(commit)
        topics = view.topics
        topic_ids = {name: facts.topic_id for name, facts in topics.items()}
        latest = {name: facts.latest for name, facts in topics.items()} if view.is_known else None
        batch = Batch(batch_id, ends, topic_ids, self._check, view.record_bytes, latest)
        following = self.store.write(frame, commit, batch)
        identity = read_identity(self.checkpoint)
        if identity is not None:
            write_identity(self.checkpoint, identity.at_batch(batch_id, topics))
        self._count(following)

    def tally(self) -> dict[str, int]:
        """See `JobFunction`."""
        return {"files": self.files, "dead": self.dead}

    def take(self, tally: Mapping[str, int]) -> None:
        """See `JobFunction`."""
        self.files += tally["files"]
        self.dead += tally["dead"]

    def _count(self, commit: Commit) -> None:
        from .files import DEAD_LETTERS

        self.files += len(commit.files)
        dead = (file.records for file in commit.files if file.path.startswith(f"{DEAD_LETTERS}/"))
        self.dead += sum(dead)
        if self.on_commit is not None:
            self.on_commit()

    def _begin(self, batch_id: int) -> Offsets:
        """Where a batch begins. Raises JobError."""
        if batch_id > 0:
            return self._ends(batch_id - 1)
        identity = read_identity(self.checkpoint)
        return begin_of(self.query, identity) if identity is not None else {}

    def _ends(self, batch_id: int) -> Offsets:
        """Where a planned batch ends, exclusive. Raises JobError."""
        ends = batch_ends(self.query, batch_id)
        if ends is None:
            raise JobError(f"{self.query} has no offsets of batch {batch_id}: the folder vanished")
        return ends

    def _check(self) -> None:
        """See `Batch`."""
        output = self.store.folder
        if self.store.newest() is None:
            raise _vanished(output)
        check_lease(output, LEASE, self.lease_id)

    def _look(self, commit: Commit) -> ClusterView:
        """The cluster now; empty if the cluster cannot be asked. Raises StartRefused for a topic
        that was created again while the query runs.
        """
        try:
            view = look(self.bootstrap_servers, self.subscription, self.security_protocol)
        except JobError:  # Spark itself waits for brokers that restart
            return ClusterView({})
        for name, facts in view.topics.items():
            known = commit.topic_ids.get(name)
            if known and facts.topic_id and known != facts.topic_id:
                raise StartRefused(
                    f"topic {name} was deleted and created again while it was archived: nothing "
                    "of this batch is visible. --resume-from earliest archives the new topic "
                    "beside the old records"
                )
        return view


def _vanished(output: Folder) -> JobError:
    return JobError(
        f"{output} has vanished or was emptied (is its disk gone?): nothing of this batch is "
        "visible. Bring it back and start again"
    )


def batches_of(opened: Opened) -> ArchiveBatches:
    """The batch function of an opened archive."""
    options = opened.options
    return ArchiveBatches(
        store=opened.store,
        checkpoint=opened.checkpoint,
        query=opened.query,
        checkpoint_id=opened.identity.checkpoint_id,
        query_number=opened.identity.query,
        lease_id=opened.lease_id,
        bootstrap_servers=options.bootstrap_servers,
        subscription=options.subscription,
        security_protocol=options.security_protocol,
    )
