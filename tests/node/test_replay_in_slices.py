"""A committed batch of very many records is replayed in several turns of the loop: the image is
published whole and in log order, and proposals are answered after that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.loader import RECORDS_PER_STEP
from kbroker.metadata.records import encode_record
from kbroker.model import InvariantError
from kbroker.node.loop.futures import as_future
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import NoOpRecord, PartitionRecord
from kbroker.replication.time_slices import TimeSlices
from tests.node.metadata_node import MetadataNode, run, start, topics
from tests.replication.test_time_slices import Ticks, Turns

STEPS_PER_SLICE = 4
PARTITIONS = 20 * RECORDS_PER_STEP


class SlicedNode:
    """A node whose replay takes a turn of `turns` for every few steps."""

    def __init__(self, node: MetadataNode) -> None:
        self.node = node
        self.turns = Turns()
        node.log._replay = TimeSlices(self.turns, seconds=STEPS_PER_SLICE / 1000, clock=Ticks())
        node.role.service._operations = TimeSlices(None)
        self.images: list[MetadataImage] = []
        node.log.loader.on_image(lambda old, new: self.images.append(new))
        self.images.clear()

    def create(self, name: str, partitions: int = 1) -> Deferred[ErrorCode]:
        created = self.node.channel.create_topics(topics(name, partitions=partitions))
        return created.then(lambda response: ErrorCode(response.topics[0].error_code))

    async def committed(self) -> None:
        """Everything proposed is in the log; at most the first slice is replayed."""
        idle: Deferred[None] = Deferred()
        self.node.log.driver._executor.once_idle(partial(idle.resolve, None))
        await as_future(idle)

    def finish(self) -> int:
        count = 0
        while self.turns.due:
            self.turns.turn()
            count += 1
        return count


def test_a_large_topic_is_published_whole_after_many_turns(tmp_path: Path) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        before = sliced.node.image
        big = sliced.create("big", PARTITIONS)
        again, small = sliced.create("big"), sliced.create("small")
        await sliced.committed()
        turns = 0
        while not big.done:
            assert sliced.node.image is before and not again.done and not small.done
            sliced.turns.turn()
            turns += 1
        assert turns >= PARTITIONS / RECORDS_PER_STEP / (STEPS_PER_SLICE + 1)
        sliced.finish()
        assert (big.value, small.value) == (ErrorCode.NONE, ErrorCode.NONE)
        assert again.value is ErrorCode.TOPIC_ALREADY_EXISTS  # decided on what was proposed
        assert [len(image.topics) - len(before.topics) for image in sliced.images] == [1, 2]
        assert len(sliced.images[0].topics["big"].partitions) == PARTITIONS
        assert sliced.node.role.service._controller.image is sliced.node.image
        await sliced.node.stop()

    run(script)


def test_what_is_committed_when_the_node_stops_is_replayed_and_answered(tmp_path: Path) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        big, small = sliced.create("big", PARTITIONS), sliced.create("small")
        await sliced.committed()
        sliced.turns.turn()
        assert not big.done
        await sliced.node.stop()
        assert (big.value, small.value) == (ErrorCode.NONE, ErrorCode.NONE)
        assert len(sliced.node.image.topics["big"].partitions) == PARTITIONS
        again = MetadataNode(tmp_path)
        await again.start()
        assert again.image.topics == sliced.node.image.topics
        await again.stop()

    run(script)


def test_a_killed_node_publishes_nothing_more(tmp_path: Path) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        big = sliced.create("big", PARTITIONS)
        await sliced.committed()
        sliced.node.log.kill()
        sliced.finish()
        assert not big.done and not sliced.images
        await sliced.node.stop()
        with pytest.raises(KafkaError):  # NOT_CONTROLLER: the outcome is unknown
            _ = big.value

    run(script)


def test_leadership_is_lost_after_everything_that_was_seen_committed(tmp_path: Path) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        log, told = sliced.node.log, list[str]()
        log.on_leadership_lost(lambda: told.append("lost"))
        log.on_leadership_gained(lambda epoch: told.append(f"gained {epoch}"))
        assert told == ["gained 1"]
        big = sliced.create("big", PARTITIONS)
        big.on_done(lambda _: told.append("answered"))
        await sliced.committed()
        log.driver.feed.leadership_lost()
        assert told == ["gained 1"] and log.led_epoch == 1
        sliced.finish()
        assert told == ["gained 1", "answered", "lost"] and log.led_epoch is None
        assert not sliced.node.role.service.is_active
        log._leadership_gained(9)  # by now the node leads no longer, or another epoch
        sliced.finish()
        assert told[3:] == [] and log.led_epoch is None
        await sliced.node.stop()

    run(script)


def test_a_new_leader_begins_on_the_image_of_all_before_it(tmp_path: Path) -> None:
    """Also if the high watermark is ahead of the replay, because the quorum changed its voters."""

    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        log, told = sliced.node.log, list[str]()
        log.caught_up = Deferred()
        log.caught_up.on_done(lambda _: told.append("published"))
        log._gained_listeners[:] = [lambda epoch: told.append(f"gained {epoch}")]
        log._leadership_gained(log.driver.epoch)
        sliced.finish()
        assert told == ["published", "gained 1"]
        await sliced.node.stop()

    run(script)


def test_after_a_record_that_cannot_be_replayed_nothing_is_published_or_answered(
    tmp_path: Path,
) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        before = sliced.node.image
        records = [encode_record(NoOpRecord(), 25)] * PARTITIONS
        unknown = PartitionRecord(topic_id=b"?" * 16)
        sliced.node.log.driver.append([*records, encode_record(unknown, 25)])
        small = sliced.create("small")
        await sliced.committed()
        with pytest.raises(InvariantError, match="unknown topic id"):
            sliced.finish()
        sliced.finish()
        assert sliced.node.image is before and not small.done
        await sliced.node.stop()

    run(script)


def test_any_exception_is_fatal_in_whichever_slice_it_is_raised(tmp_path: Path) -> None:
    """Here that of a listener, after many slices or within the first one."""

    async def script(directory: Path, *, is_first_slice: bool) -> None:
        sliced = SlicedNode(await start(directory))
        log, failed = sliced.node.log, ValueError("a bug")

        def fail(old: MetadataImage, new: MetadataImage) -> None:
            if new.topics:
                raise failed

        log.loader.on_image(fail)
        created = sliced.create("t", 1 if is_first_slice else PARTITIONS)
        small = sliced.create("small")
        await sliced.committed()
        if is_first_slice:
            error: BaseException | None = log.driver.failure
        else:
            with pytest.raises(InvariantError) as caught:
                sliced.finish()
            error = caught.value
        assert isinstance(error, InvariantError) and str(error) == "ValueError: a bug"
        assert error.__cause__ is failed
        sliced.finish()
        assert not created.done and not small.done and len(sliced.images) == 1
        await sliced.node.stop()

    for is_first_slice in (False, True):
        directory = tmp_path / str(is_first_slice)
        run(partial(script, directory, is_first_slice=is_first_slice))


def test_after_a_snapshot_that_cannot_be_replayed_nothing_is_published(tmp_path: Path) -> None:
    async def script() -> None:
        sliced = SlicedNode(await start(tmp_path))
        before = sliced.node.image
        records = [encode_record(NoOpRecord(), 25)] * PARTITIONS
        cut = encode_record(PartitionRecord(), 25)[:-1]
        sliced.node.log._snapshot_read([*records, cut], 1_000_000, 1)
        small = sliced.create("small")
        await sliced.committed()
        with pytest.raises(InvariantError, match="cannot be decoded"):
            sliced.finish()
        sliced.finish()
        assert sliced.node.image is before and not small.done
        await sliced.node.stop()

    run(script)
