"""What happens in each batch: write, commit, publish; and the identity after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..checkpoint import batch_ends
from ..cluster import Subscription, Topics, look
from ..errors import JobError, StartRefused
from ..identity import read_identity, write_identity
from ..lease import check_lease
from ..running import StopRequested
from ..storage import Folder
from .commits import (
    Commit,
    StagedFile,
    Staging,
    add_commit,
    clean_up,
    newest_commit,
    next_commit,
    publish,
    staging_folder,
)
from .opening import LEASE, Opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Write = Callable[["DataFrame", Staging], list[StagedFile]]


@dataclass
class ArchiveBatches:
    """The function of the query's foreachBatch. Its state is in the output and the checkpoint, so
    it may run in another process than the one that made it (Spark Connect).

    is_stopping, on_commit: only called in the process that made it.
    """

    output: Folder
    checkpoint: Folder
    query: Folder
    checkpoint_id: str
    query_number: int
    lease_id: str
    bootstrap_servers: str
    subscription: Subscription
    security_protocol: str
    target_file_bytes: int
    compression: str
    write: Write
    is_stopping: Callable[[], bool] | None = None
    on_commit: Callable[[Commit], None] | None = None
    failure: Exception | None = None

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
        commit = newest_commit(self.output)
        if commit is None or (commit.checkpoint_id, commit.query) != (
            self.checkpoint_id,
            self.query_number,
        ):
            raise StartRefused(f"another run writes to {self.output}: this one ends")
        if commit.batch_id >= batch_id:  # published; Spark was ended before it noted that
            return
        ends = batch_ends(self.query, batch_id)
        if ends is None:
            raise JobError(f"{self.query} has no offsets of batch {batch_id}: the folder vanished")
        topics = self._look(commit)
        staging = Staging(
            output=self.output.uri,
            staged_in=staging_folder(commit.number + 1),
            layout=commit.layout,
            generations=commit.generations,
            target_file_bytes=self.target_file_bytes,
            compression=self.compression,
            origin={
                "checkpoint_id": self.checkpoint_id,
                "query": self.query_number,
                "batch_id": batch_id,
            },
        )
        files = self.write(frame, staging)
        check_lease(self.output, LEASE, self.lease_id)
        topic_ids = {name: facts.topic_id for name, facts in topics.items()}
        following = next_commit(commit, batch_id, ends, files)
        following = replace(following, topic_ids={**commit.topic_ids, **topic_ids})
        add_commit(self.output, following)
        publish(self.output, following)
        clean_up(self.output, following)
        identity = read_identity(self.checkpoint)
        if identity is not None:
            write_identity(self.checkpoint, identity.at_batch(batch_id, topics))
        if self.on_commit is not None:
            self.on_commit(following)

    def _look(self, commit: Commit) -> Topics:
        """The topics now; empty if the cluster cannot be asked. Raises StartRefused for a topic
        that was created again while the query runs.
        """
        try:
            view = look(self.bootstrap_servers, self.subscription, self.security_protocol)
        except JobError:  # Spark itself waits for brokers that restart
            return {}
        for name, facts in view.topics.items():
            known = commit.topic_ids.get(name)
            if known and facts.topic_id and known != facts.topic_id:
                raise StartRefused(
                    f"topic {name} was deleted and created again while it was archived: nothing "
                    "of this batch is visible. --resume-from earliest archives the new topic "
                    "beside the old records"
                )
        return view.topics


def batches_of(opened: Opened, write: Write) -> ArchiveBatches:
    """The batch function of an opened archive. write: as `staged_parquet.write_staged`."""
    options = opened.options
    return ArchiveBatches(
        output=opened.output,
        checkpoint=opened.checkpoint,
        query=opened.query,
        checkpoint_id=opened.identity.checkpoint_id,
        query_number=opened.identity.query,
        lease_id=opened.lease_id,
        bootstrap_servers=options.bootstrap_servers,
        subscription=options.subscription,
        security_protocol=options.security_protocol,
        target_file_bytes=options.target_file_bytes,
        compression=options.compression,
        write=write,
    )
