"""The replay of records, also of types that kbroker does not write."""

from __future__ import annotations

import pytest

from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.snapshot import image_records
from kbroker.model import InvariantError
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored import metadata_records as records
from tests.controller.cluster import Cluster, topic

ID = b"\x07" * 16


def replayed(*replay: Message, image: MetadataImage | None = None) -> MetadataImage:
    delta = MetadataDelta(image or MetadataImage())
    for record in replay:
        delta.replay(record)
    return delta.apply(offset=1, epoch=1)


def round_trip(image: MetadataImage) -> None:
    assert replayed(*image_records(image)) == replayed(image=image)


def test_scram_credentials_come_and_go() -> None:
    credential = records.UserScramCredentialRecord(name="u", mechanism=1, salt=b"s", iterations=1)
    image = replayed(credential)
    assert image.scram_credentials == {(1, "u"): credential}
    round_trip(image)
    gone = records.RemoveUserScramCredentialRecord(name="u", mechanism=1)
    assert replayed(gone, image=image).scram_credentials == {}


def test_acls_come_and_go() -> None:
    entry = records.AccessControlEntryRecord(id=ID, resource_name="t", principal="User:a")
    image = replayed(entry)
    assert image.acls == {ID: entry}
    round_trip(image)
    assert not replayed(records.RemoveAccessControlEntryRecord(id=ID), image=image).acls


def test_delegation_tokens_come_and_go() -> None:
    token = records.DelegationTokenRecord(owner="User:a", token_id="t")
    image = replayed(token)
    assert image.delegation_tokens == {"t": token}
    round_trip(image)
    gone = replayed(records.RemoveDelegationTokenRecord(token_id="t"), image=image)
    assert gone.delegation_tokens == {}


def test_client_quotas() -> None:
    part = records.ClientQuotaRecord.EntityData
    entity = [part(entity_type="user", entity_name="a"), part(entity_type="client-id")]
    entity[1].entity_name = None
    image = replayed(
        records.ClientQuotaRecord(entity=entity, key="k", value=1.5),
        records.ClientQuotaRecord(entity=entity, key="l", value=2.5),
    )
    key = (("client-id", None), ("user", "a"))
    assert image.client_quotas == {key: {"k": 1.5, "l": 2.5}}
    round_trip(image)
    image = replayed(records.ClientQuotaRecord(entity=entity, key="k", remove=True), image=image)
    assert image.client_quotas == {key: {"l": 2.5}}
    image = replayed(records.ClientQuotaRecord(entity=entity, key="l", remove=True), image=image)
    assert image.client_quotas == {}


def test_zk_migration_state_is_carried() -> None:
    image = replayed(records.ZkMigrationStateRecord(zk_migration_state=3))
    assert image.zk_migration_state == 3
    round_trip(image)


def test_fence_unfence_and_unregister() -> None:
    cluster = Cluster()
    epoch = cluster.epoch_of(1)
    fenced = replayed(records.FenceBrokerRecord(id=1, epoch=epoch), image=cluster.image)
    assert fenced.brokers[1].fenced
    unfenced = replayed(records.UnfenceBrokerRecord(id=1, epoch=epoch), image=fenced)
    assert not unfenced.brokers[1].fenced
    gone = replayed(records.UnregisterBrokerRecord(broker_id=1, broker_epoch=epoch), image=unfenced)
    assert gone.brokers == {}
    with pytest.raises(InvariantError, match="broker 1 at the epoch 99"):
        replayed(records.FenceBrokerRecord(id=1, epoch=99), image=cluster.image)


def test_a_config_is_set_changed_and_deleted() -> None:
    def config(value: str | None) -> records.ConfigRecord:
        return records.ConfigRecord(resource_type=2, resource_name="t", name="n", value=value)

    image = replayed(config("1"), config("2"))
    assert image.topic_configs("t") == {"n": "2"}
    round_trip(image)
    image = replayed(config(None), image=image)
    assert image.configs == {}


def test_a_feature_at_level_zero_is_removed() -> None:
    on = records.FeatureLevelRecord(name="group.version", feature_level=1)
    off = records.FeatureLevelRecord(name="group.version", feature_level=0)
    assert replayed(on).features == {"group.version": 1}
    assert replayed(on, off).features == {}


@pytest.mark.parametrize("name", ["t", ""])
def test_clear_elr(name: str) -> None:
    cluster = Cluster()
    cluster.create(topic("t", 2))
    cluster.beat(1, stop=True)
    image = replayed(records.ClearElrRecord(topic_name=name), image=cluster.image)
    assert {p.elr + p.last_known_elr for p in image.topics["t"].partitions.values()} == {()}


def test_a_transaction_counts_whole_or_not_at_all() -> None:
    feature = records.FeatureLevelRecord(name="group.version", feature_level=1)
    begin = records.BeginTransactionRecord(name="x")
    assert replayed(begin, feature, records.EndTransactionRecord()).features == {"group.version": 1}
    assert replayed(begin, feature, records.AbortTransactionRecord()).features == {}
    delta = MetadataDelta(MetadataImage())
    delta.replay(begin)
    delta.replay(feature)
    assert delta.in_transaction
    with pytest.raises(InvariantError, match="inside a metadata transaction"):
        delta.apply(offset=1, epoch=1)
    with pytest.raises(InvariantError, match="begins inside another"):
        delta.replay(begin)
    with pytest.raises(InvariantError, match="never began"):
        replayed(records.EndTransactionRecord())


def test_records_that_cannot_follow() -> None:
    with pytest.raises(InvariantError, match="unknown topic id"):
        replayed(records.RemoveTopicRecord(topic_id=ID))
    with pytest.raises(InvariantError, match="which has none"):
        replayed(
            records.TopicRecord(name="t", topic_id=ID),
            records.PartitionChangeRecord(partition_id=0, topic_id=ID),
        )


def test_a_change_of_replicas_keeps_known_directories() -> None:
    partition = records.PartitionRecord(
        partition_id=0, topic_id=ID, replicas=[1, 2], isr=[1], leader=1, directories=[ID, bytes(16)]
    )
    image = replayed(records.TopicRecord(name="t", topic_id=ID), partition)
    change = records.PartitionChangeRecord(partition_id=0, topic_id=ID, replicas=[3, 1])
    after = replayed(change, image=image).partition("t", 0)
    assert after is not None
    assert after.directories == (bytes(16), ID)
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, -1, 0)


def test_a_small_change_shares_the_rest() -> None:
    cluster = Cluster()
    cluster.create(*(topic(f"t{i}") for i in range(500)))
    old = cluster.image
    cluster.create(topic("new"))
    assert cluster.image.brokers is old.brokers
    assert cluster.image.configs is old.configs
    assert cluster.image.topics["t7"] is old.topics["t7"]
