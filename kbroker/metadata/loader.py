"""The metadata loader: replays committed records of the metadata log into an image and publishes
every new image (Kafka's MetadataLoader).

Every node of a cluster has one. The reader of the metadata log passes the records to
`snapshot_read` and `committed`; decisions are in `kbroker/controller`, `snapshotter` writes
snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import decode_record
from kbroker.model import InvariantError

logger = logging.getLogger(__name__)

RECORDS_PER_STEP: Final = 64
"""How many records are replayed in one step: a millisecond of work. A new topic may have 10,000
records.
"""

ImageListener = Callable[[MetadataImage, MetadataImage], None]
"""(old, new): `LayeredMap.changed_keys` of the new image's maps gives the difference."""


class MetadataLoader:
    """The committed metadata of one node.

    loading -> publishing, once (`caught_up`). While loading, records are only collected, since
    intermediate states are not needed. Each committed batch is then published as one image, except
    that a metadata transaction (KIP-868) is published as a whole when it ends.

    image: the newest committed image; that of an empty cluster until `caught_up`.
    """

    __slots__ = (
        "_delta",
        "_epoch",
        "_is_published",
        "_is_publishing",
        "_last_offset",
        "_listeners",
        "_node_id",
        "image",
    )

    def __init__(self, cluster_id: str, *, node_id: int) -> None:
        self._node_id = node_id
        self.image = MetadataImage(cluster_id=cluster_id)
        self._delta = MetadataDelta(self.image)
        self._last_offset = -1
        self._epoch = 0
        self._is_publishing = False
        self._is_published = False
        self._listeners: list[ImageListener] = []

    @property
    def last_offset(self) -> int:
        """The last offset that was replayed, including control records; -1 before the first."""
        return self._last_offset

    @property
    def in_transaction(self) -> bool:
        """Whether the log so far ends inside a metadata transaction: a new controller aborts it."""
        return self._delta.in_transaction

    def on_image(self, listener: ImageListener) -> None:
        """Call back with (old, new) after each commit, in the order of registration.

        A listener that registers after the first publication is called at once with (empty image,
        current image).
        """
        self._listeners.append(listener)
        if self._is_published:
            listener(MetadataImage(cluster_id=self.image.cluster_id), self.image)

    def snapshot_read(
        self, records: Iterable[bytes], end_offset: int, epoch: int
    ) -> Iterator[None]:
        """Steps that start from a snapshot, or again from one that was fetched from the leader:
        then the last step publishes its image. end_offset: exclusive, as in the name of its file.
        """
        self._delta = MetadataDelta(MetadataImage(cluster_id=self.image.cluster_id))
        for count, record in enumerate(records):
            if count and count % RECORDS_PER_STEP == 0:
                yield
            self._delta.replay(decode_record(record))
        self._last_offset, self._epoch = end_offset - 1, epoch
        if self._is_publishing:
            self._publish()

    def committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> Iterator[None]:
        """Steps that replay one committed batch; a control batch has no records. All steps of a
        batch are taken before those of the next one, in log order; the last step publishes.

        Raises InvariantError for a record that cannot be replayed.
        """
        for count, record in enumerate(records):
            if count and count % RECORDS_PER_STEP == 0:
                yield
            self._delta.replay(decode_record(record))
        self._last_offset, self._epoch = base_offset + max(len(records), 1) - 1, epoch
        if records and self._is_publishing and not self._delta.in_transaction:
            self._publish()

    def caught_up(self) -> None:
        """The log was read up to its current end: start publishing.

        The records of a transaction that has not ended are in no image. An image without feature
        levels, before the bootstrap records are written, is not published.
        """
        self._is_publishing = True
        if self._delta.in_transaction:
            logger.warning(
                "Node %d: the metadata log ends inside a metadata transaction", self._node_id
            )
        old, self.image = self.image, self._next_image()
        if self.image.features:
            self._notify(old)

    def _publish(self) -> None:
        old, self.image = self.image, self._next_image()
        if self.image.offset < old.offset:
            raise InvariantError(
                f"metadata image goes back from offset {old.offset} to {self.image.offset}"
            )
        self._notify(old)

    def _next_image(self) -> MetadataImage:
        image, self._delta = self._delta.split(offset=self._last_offset, epoch=self._epoch)
        return image

    def _notify(self, old: MetadataImage) -> None:
        self._is_published = True
        for listener in self._listeners:
            listener(old, self.image)
