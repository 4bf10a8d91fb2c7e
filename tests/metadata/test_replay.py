"""Live state and replayed state are the same; so is a snapshot. Checked on random operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import decode_record, encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from tests.controller.cluster import Cluster, topic

NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "__consumer_offsets"])
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("delete"), NAMES, st.just(0), st.just(0)),
    st.tuples(st.just("shut down"), st.just(""), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("restart"), st.just(""), st.integers(1, 3), st.integers(0, 1)),
    st.tuples(st.just("producer ids"), st.just(""), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("internal"), st.just(""), st.just(0), st.just(0)),
)


def perform(cluster: Cluster, kind: str, name: str, number: int, other: int) -> None:
    controller = cluster.controller
    match kind:
        case "create":
            configs = {"min.insync.replicas": str(other)} if number % 2 else {}
            cluster.create(topic(name, number, other, configs=dict(configs)))
        case "delete":
            request = DeleteTopicsRequest(topic_names=[name])
            cluster.run(controller.delete_topics(request, api_version=5))
        case "shut down":
            cluster.shut_down(number)
        case "restart":
            cluster.register(number, previous=cluster.epoch_of(number) if other else -1)
            cluster.beat(number)
        case "producer ids":
            cluster.run(controller.allocate_producer_ids(number, cluster.epoch_of(number)))
        case "internal":
            cluster.run(controller.ensure_internal_topic("__consumer_offsets"))


def replay(log: list[bytes]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for data in log:
        delta.replay(decode_record(data))
    return delta.apply(offset=len(log) - 1, epoch=1)


@given(st.lists(OPERATIONS, max_size=25))
def test_the_log_replayed_gives_the_live_image(
    operations: list[tuple[str, str, int, int]],
) -> None:
    cluster = Cluster(brokers=(1, 2, 3), offsets_topic_num_partitions="3")
    for operation in operations:
        perform(cluster, *operation)
    image = cluster.image
    assert replay(cluster.log) == image
    snapshot = [encode_record(record, 30) for record in image_records(image)]
    assert replace(replay(snapshot), offset=image.offset) == image
    check_invariants(image)


def check_invariants(image: MetadataImage) -> None:
    """A leader is in the ISR, the ISR and the ELR are replicas, both maps of topics agree."""
    assert {t.topic_id: t for t in image.topics.values()} == dict(image.topics_by_id)
    for each in image.topics.values():
        for partition in each.partitions.values():
            assert set(partition.isr) | set(partition.elr) <= set(partition.replicas)
            assert not set(partition.isr) & set(partition.elr)
            if partition.leader >= 0:
                assert partition.leader in partition.isr
                assert not image.brokers[partition.leader].in_controlled_shutdown


def test_replay_of_a_cut_log_is_the_image_of_that_time() -> None:
    cluster = Cluster(brokers=(1, 2))
    images = {}
    for index in range(10):
        cluster.create(topic(f"t{index}", 2, 2))
        images[len(cluster.log)] = cluster.image
    for length, image in images.items():
        assert replay(cluster.log[:length]) == image
