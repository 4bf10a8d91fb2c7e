"""From an image to records: their order, and that no part of an image is missing."""

from __future__ import annotations

from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import (
    METADATA_VERSION,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.metadata.records import decode_record, encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored import metadata_records as records

ID, OTHER = b"a" * 16, b"b" * 16
ENDPOINT = {"PLAINTEXT": Endpoint("PLAINTEXT", "h", 9092, 1)}
PARTITION = PartitionImage(
    replicas=(1, 2, 3),
    directories=(ID, OTHER, ID),
    isr=(1,),
    removing=(2,),
    adding=(3,),
    elr=(2,),
    leader=1,
    leader_epoch=5,
    partition_epoch=6,
    last_known_elr=(3,),
    leader_recovery_state=1,
)


def full_image() -> MetadataImage:
    """Every field differs from its default."""
    topics = {
        "b_c": TopicImage("b_c", OTHER, {0: PARTITION}),
        "a": TopicImage("a", ID, {0: PARTITION, 1: PARTITION}),
    }
    broker = BrokerRegistration(
        id=1,
        epoch=8,
        incarnation_id=ID,
        endpoints=ENDPOINT,
        rack="r",
        fenced=True,
        in_controlled_shutdown=True,
        features={METADATA_VERSION: (7, 30)},
        log_dirs=(ID, OTHER),
        cordoned_log_dirs=(OTHER,),
    )
    acl = records.AccessControlEntryRecord(id=ID, resource_type=2, resource_name="t", host="*")
    scram = records.UserScramCredentialRecord(name="u", mechanism=1, salt=b"s", iterations=4096)
    return MetadataImage(
        cluster_id="c",
        offset=9,
        epoch=4,
        brokers={1: broker},
        controllers={
            3: ControllerRegistration(3, OTHER, ENDPOINT, {"f": (0, 1)}, zk_migration_ready=True)
        },
        topics=LayeredMap(topics),
        topics_by_id=LayeredMap({topic.topic_id: topic for topic in topics.values()}),
        names_by_metric=LayeredMap({"b_c": "b_c"}),
        configs=LayeredMap({(2, "a"): {"y": "1", "x": "2"}, (4, ""): {"z": "3"}}),
        features={"group.version": 1, METADATA_VERSION: 30},
        next_producer_id=3000,
        scram_credentials={(1, "u"): scram},
        acls=LayeredMap({ID: acl}),
        delegation_tokens={"d": records.DelegationTokenRecord(token_id="d")},
        client_quotas={(("client-id", None), ("user", "u")): {"q": 2.5, "p": 1.0}},
        zk_migration_state=2,
    )


def replayed(snapshot: list[Message]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage(cluster_id="c"))
    for record in snapshot:
        delta.replay(decode_record(encode_record(record, 30)))
    return delta.apply(offset=9, epoch=4)


def test_every_field_of_an_image_comes_back() -> None:
    image, empty = full_image(), MetadataImage()
    assert [f for f in image.__struct_fields__ if getattr(image, f) == getattr(empty, f)] == []
    found = replayed(list(image_records(image)))
    for field in image.__struct_fields__:
        assert getattr(found, field) == getattr(image, field), field


def test_what_others_rest_on_comes_first() -> None:
    """metadata.version before all, since it decides how the rest is read; a topic before its
    partitions; the order does not depend on that of the image.
    """
    found = list(image_records(full_image()))
    kinds: list[str] = []
    for record in found:
        kind = type(record).__name__
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    assert kinds == [
        "FeatureLevelRecord",
        "RegisterBrokerRecord",
        "RegisterControllerRecord",
        "TopicRecord",
        "PartitionRecord",
        "TopicRecord",
        "PartitionRecord",
        "ConfigRecord",
        "ClientQuotaRecord",
        "ProducerIdsRecord",
        "AccessControlEntryRecord",
        "UserScramCredentialRecord",
        "DelegationTokenRecord",
        "ZkMigrationStateRecord",
    ]
    levels = [each.name for each in found if isinstance(each, records.FeatureLevelRecord)]
    assert levels == [METADATA_VERSION, "group.version"]
    assert [each.name for each in found if isinstance(each, records.TopicRecord)] == ["a", "b_c"]
    settings = [each.name for each in found if isinstance(each, records.ConfigRecord)]
    assert settings == ["x", "y", "z"]


def test_an_empty_image_has_no_records() -> None:
    assert list(image_records(MetadataImage())) == []
