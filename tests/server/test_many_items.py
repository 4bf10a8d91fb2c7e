"""Requests that name very much: every handler gives the loop its turn, and repeats nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterator, KeysView
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.controller.configs import ALTERED, Alteration, Alterations
from kbroker.controller.configs import Outcome as Altered
from kbroker.coordinator.transaction.service import LISTED_COST
from kbroker.metadata.patterns import CHARACTERS_PER_TURN
from kbroker.model import ClientIdentity, TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from kbroker.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.list_offsets import OffsetForLeaderEpochRequest
from kbroker.protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kbroker.protocol.messages.share_state import WriteShareGroupStateRequest
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.pieces import PIECE_ITEMS
from kbroker.protocol.share_partition_state import StateWrite
from kbroker.server.handlers import all_handlers
from kbroker.server.handlers.log_dirs import _altered
from kbroker.server.handlers.share_groups import NUMBERS_PER_STEP, _each_group_once
from kbroker.server.handlers.share_state import BATCHES_PER_STEP
from kbroker.server.requests import LARGE_REQUEST_BYTES, RequestContext
from kbroker.server.slicing.sliced import CHEAP_ITEMS, at_once
from tests.coordinator.transaction.world import Client, TransactionWorld
from tests.replication.world import TOPIC, World, batch
from tests.server.slices import Sliced

HANDLER_OF = {handler.api_key: handler for handler in all_handlers()}
MANY = 1000
STATE_BATCH_BYTES = 8 + 8 + 1 + 2 + 1  # of WriteShareGroupState, with its tagged fields


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, partitions=3)
    made.append(batches=batch(5))
    yield made
    made.close()


def begin(sliced: Sliced, api_key: ApiKey, request: Any, *, version: int | None = None) -> Any:
    handler = HANDLER_OF[api_key]
    image = SimpleNamespace(partition=lambda topic, index: object())
    sliced.image = image  # type: ignore[attr-defined]  # the fixture's
    context = RequestContext(api_key, handler.max_version if version is None else version)
    return handler.handle(sliced.services, context, request)


def in_slices(sliced: Sliced, api_key: ApiKey, request: Any) -> Any:
    outcome = begin(sliced, api_key, request)
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    return sliced.answer(outcome)


def test_leader_epochs(world: World) -> None:
    kind = OffsetForLeaderEpochRequest
    asked = [kind.OffsetForLeaderPartition(partition=index % 3) for index in range(MANY)]
    empty = [kind.OffsetForLeaderTopic(topic="nothing")] * MANY
    request = kind(topics=[kind.OffsetForLeaderTopic(topic=TOPIC, partitions=asked), *empty])
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
    assert len(response.topics) == MANY + 1
    assert len(response.topics[0].partitions) == MANY


def test_deleted_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a partition that is named again the last offset counts, in whichever topic entry, and one
    partition's start is no reason to look at all others.
    """
    kind = DeleteRecordsRequest
    topics = [
        kind.DeleteRecordsTopic(
            name=TOPIC,
            partitions=[
                kind.DeleteRecordsPartition(partition_index=index, offset=offset)
                for index in (0, *range(100, 600))
            ],
        )
        for offset in (4, 1, 2)
    ]
    deleted: list[tuple[TopicPartition, int]] = []
    delete = world.replicas.delete_records

    def counted(key: TopicPartition, offset: int) -> int:
        deleted.append((key, offset))
        return delete(key, offset)

    def all_partitions() -> Any:
        raise AssertionError("every partition is looked at")

    monkeypatch.setattr(world.replicas, "delete_records", counted)
    monkeypatch.setattr(world.replicas, "partitions", all_partitions)
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.DELETE_RECORDS, kind(topics=topics))
    (topic,) = response.topics
    assert len(topic.partitions) == len(deleted) == 501
    assert deleted[0] == (TopicPartition(TOPIC, 0), 2)
    assert topic.partitions[0].low_watermark == 2
    partition = world.replicas.partition(TopicPartition(TOPIC, 0))
    assert partition is not None
    assert partition.log.log_start_offset == 2
    monkeypatch.undo()


def test_moved_replicas(world: World) -> None:
    kind = AlterReplicaLogDirsRequest
    topic = kind.AlterReplicaLogDirTopic(name=TOPIC, partitions=list(range(MANY)))
    request = kind(dirs=[kind.AlterReplicaLogDir(path="/nowhere", topics=[topic])])
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
    (result,) = response.results
    assert {each.error_code for each in result.partitions} == {ErrorCode.LOG_DIR_NOT_FOUND}
    assert len(result.partitions) == MANY


def test_described_log_dirs(world: World) -> None:
    kind = DescribeLogDirsRequest
    topics = [kind.DescribableLogDirTopic(topic=TOPIC, partitions=[*range(20_000), 0, 1, 0])]
    sliced = Sliced(replicas=world.replicas)
    response = in_slices(sliced, ApiKey.DESCRIBE_LOG_DIRS, kind(topics=topics))
    (result,) = response.results
    assert sorted(each.partition_index for each in result.topics[0].partitions) == [0, 1, 2]


def test_markers() -> None:
    """Answered when the last one is committed."""
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=list(range(100)))
    markers = [kind.WritableTxnMarker(producer_id=number, topics=[topic]) for number in range(5)]
    committed: Deferred[ErrorCode] = Deferred()
    written: list[TopicPartition] = []

    def write(partition: TopicPartition, *_: Any, **__: Any) -> Deferred[ErrorCode]:
        written.append(partition)
        return committed if partition.partition == 7 else Deferred.of(ErrorCode.NONE)

    sliced = Sliced(markers=SimpleNamespace(write=write))
    outcome = begin(sliced, ApiKey.WRITE_TXN_MARKERS, kind(markers=markers))
    assert isinstance(outcome, Deferred)
    assert len(written) < 200
    while sliced.turns.due:
        sliced.turns.turn()
    assert len(written) == 500
    assert not outcome.done
    committed.resolve(ErrorCode.NOT_ENOUGH_REPLICAS)
    response = sliced.answer(outcome)
    errors = [
        each.partition_index
        for answer in response.markers
        for each in answer.topics[0].partitions
        if each.error_code
    ]
    assert errors == [7] * 5


def test_a_marker_is_written_once_to_a_partition_named_again() -> None:
    """In one marker and in equal ones in a row; each name has its result all the same."""
    kind = WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0, 1, 1, 0] * MANY)
    commit, abort = (
        kind.WritableTxnMarker(producer_id=1, transaction_result=result, topics=[topic, topic])
        for result in (True, False)
    )
    committed: Deferred[ErrorCode] = Deferred()
    written: list[tuple[int, bool]] = []

    def write(partition: TopicPartition, *_: Any, commit: bool, **__: Any) -> Deferred[ErrorCode]:
        written.append((partition.partition, commit))
        return committed if partition.partition else Deferred.of(ErrorCode.INVALID_TXN_STATE)

    sliced = Sliced(markers=SimpleNamespace(write=write))
    request = kind(markers=[commit, commit, abort, commit])
    outcome = begin(sliced, ApiKey.WRITE_TXN_MARKERS, request)
    assert isinstance(outcome, Deferred)
    while sliced.turns.due:
        sliced.turns.turn()
    assert written == [(0, True), (1, True), (0, False), (1, False), (0, True), (1, True)]
    committed.resolve(ErrorCode.NONE)
    assert not outcome.done, "32,000 results are set in one turn"
    response = sliced.answer(outcome)
    assert len(response.markers) == 4
    wanted = [ErrorCode.INVALID_TXN_STATE, 0, 0, ErrorCode.INVALID_TXN_STATE] * MANY
    for answer in response.markers:
        for results in answer.topics:
            assert [each.error_code for each in results.partitions] == wanted


def test_described_transactions() -> None:
    described: list[str] = []

    def describe(name: str) -> tuple[object, Deferred[ErrorCode]]:
        described.append(name)
        found = DescribeTransactionsResponse.TransactionState(transactional_id=name)
        return found, Deferred.of(ErrorCode.NONE)

    sliced = Sliced(transactions=SimpleNamespace(describe=describe))
    names = [f"t{index}" for index in range(MANY)]
    request = DescribeTransactionsRequest(transactional_ids=[*names, *names])
    response = in_slices(sliced, ApiKey.DESCRIBE_TRANSACTIONS, request)
    assert [each.transactional_id for each in response.transaction_states] == names
    assert described == names


def test_described_transactions_that_may_still_be_lost() -> None:
    """Each is described once it is committed, or is an error."""
    outcomes: dict[str, Deferred[ErrorCode]] = {name: Deferred() for name in "abc"}

    def describe(name: str) -> tuple[object, Deferred[ErrorCode]]:
        found = DescribeTransactionsResponse.TransactionState(
            transactional_id=name, transaction_state="Ongoing"
        )
        return found, outcomes[name]

    sliced = Sliced(transactions=SimpleNamespace(describe=describe))
    request = DescribeTransactionsRequest(transactional_ids=list("abc"))
    outcome = begin(sliced, ApiKey.DESCRIBE_TRANSACTIONS, request)
    for name, error in zip("cba", (0, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0), strict=True):
        assert isinstance(outcome, Deferred) and not outcome.done
        outcomes[name].resolve(ErrorCode(error))
    response = sliced.answer(outcome)
    found = [
        (each.transactional_id, each.error_code, each.transaction_state)
        for each in response.transaction_states
    ]
    lost = ("b", ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert found == [("a", 0, "Ongoing"), lost, ("c", 0, "Ongoing")]


def alter_configs(resources: list[tuple[str, int]]) -> tuple[list[list[str]], list[int]]:
    """What the controller is given in each part, and the answered codes. resources: name and number
    of settings; a name that is there twice is refused.
    """
    kind = IncrementalAlterConfigsRequest
    parts: list[list[str]] = []

    def alter(altered: Alterations, client: ClientIdentity) -> Deferred[list[Altered]]:
        names = [each.name for each in altered.resources]
        parts.append(names)
        return Deferred.of([ALTERED for name in names])

    sliced = Sliced(local_controller=SimpleNamespace(alter_configs=alter))
    request = kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=2,
                resource_name=name,
                configs=[kind.AlterableConfig(name=f"k{index}") for index in range(count)],
            )
            for name, count in resources
        ]
    )
    response = sliced.answer(begin(sliced, ApiKey.INCREMENTAL_ALTER_CONFIGS, request))
    assert [each.resource_name for each in response.responses] == [name for name, _ in resources]
    return parts, [each.error_code for each in response.responses]


def test_many_resources_are_altered_in_parts() -> None:
    names = [f"t{index}" for index in range(500)]
    resources = [("twice", 1), *((name, 1) for name in names), *[("twice", 1)] * 500]
    parts, codes = alter_configs(resources)
    assert max(map(len, parts)) <= 64
    assert list(chain(*parts)) == names
    assert codes == [ErrorCode.INVALID_REQUEST, *[0] * 500, *[ErrorCode.INVALID_REQUEST] * 500]


def test_a_few_resources_are_altered_together() -> None:
    assert alter_configs([("a", 3), ("b", 2)]) == ([["a", "b"]], [0, 0])


def test_no_more_settings_are_altered_than_kafka_does() -> None:
    with pytest.raises(KafkaError) as error:
        alter_configs([(f"t{index}", 1001) for index in range(10)])
    assert error.value.code == ErrorCode.POLICY_VIOLATION


def count_alterations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the settings that were looked at so far."""
    seen: list[str] = []

    def alteration(name: str, *rest: Any) -> Alteration:
        seen.append(name)
        return Alteration(name, *rest)

    monkeypatch.setattr("kbroker.server.handlers.alter_configs.Alteration", alteration)
    return seen


def one_resource(kind: type[Any], settings: int) -> Any:
    configs = [kind.AlterableConfig(name="retention.ms", value="1")] * settings
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)]
    )


ALTERING = [
    (ApiKey.ALTER_CONFIGS, AlterConfigsRequest),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest),
]


@pytest.mark.parametrize(("api_key", "kind"), ALTERING)
def test_too_many_settings_are_refused_unseen(
    api_key: ApiKey, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_alterations(monkeypatch)
    with pytest.raises(KafkaError) as error:
        begin(Sliced(), api_key, one_resource(kind, 10_001))
    assert error.value.code == ErrorCode.POLICY_VIOLATION
    assert not seen


@pytest.mark.parametrize(("api_key", "kind"), ALTERING)
def test_the_loop_has_its_turn_between_the_settings_of_a_resource(
    api_key: ApiKey, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_alterations(monkeypatch)
    outcome = begin(Sliced(), api_key, one_resource(kind, 10_000))
    assert isinstance(outcome, Deferred)
    assert 0 < len(seen) < 5000


class FakeTransactions:
    """Every partition is added, or is part of the transaction."""

    def __init__(self) -> None:
        self.added: list[list[TopicPartition]] = []
        self.committed: Deferred[ErrorCode] = Deferred()

    def add_partitions(
        self, name: str, producer: object, partitions: list[TopicPartition], **_: int
    ) -> Deferred[ErrorCode]:
        self.added.append(partitions)
        return self.committed

    def verify(
        self, name: str, producer: object, partitions: list[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        self.added.append(partitions)
        return Deferred.of(dict.fromkeys(partitions, ErrorCode.NONE))


def test_partitions_of_a_transaction() -> None:
    """Answered as often as they are named, worked on once."""
    kind = AddPartitionsToTxnRequest
    indexes = list(range(MANY)) * 2
    topics = [kind.AddPartitionsToTxnTopic(name=TOPIC, partitions=indexes)]
    transactions = FakeTransactions()
    sliced = Sliced(transactions=transactions)
    outcome = begin(
        sliced,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        kind(v3_and_below_topics=topics),
        version=3,
    )
    assert isinstance(outcome, Deferred)
    while sliced.turns.due:
        sliced.turns.turn()
    assert [len(partitions) for partitions in transactions.added] == [MANY]
    assert not outcome.done
    transactions.committed.resolve(ErrorCode.CONCURRENT_TRANSACTIONS)
    (topic,) = sliced.answer(outcome).results_by_topic_v3_and_below
    assert [each.partition_index for each in topic.results_by_partition] == indexes
    assert {each.partition_error_code for each in topic.results_by_partition} == {
        ErrorCode.CONCURRENT_TRANSACTIONS
    }


def test_partitions_of_many_transactions() -> None:
    kind = AddPartitionsToTxnRequest
    asked = [
        kind.AddPartitionsToTxnTransaction(
            transactional_id=f"t{index}",
            verify_only=True,
            topics=[kind.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 0])],
        )
        for index in range(MANY)
    ]
    transactions = FakeTransactions()
    response = in_slices(
        Sliced(transactions=transactions), ApiKey.ADD_PARTITIONS_TO_TXN, kind(transactions=asked)
    )
    results = response.results_by_transaction
    assert [each.transactional_id for each in results] == [f"t{index}" for index in range(MANY)]
    assert transactions.added == [[TopicPartition(TOPIC, 0)]] * MANY
    assert len(results[0].topic_results[0].results_by_partition) == 2


def test_offsets_of_share_groups() -> None:
    """A group of one letter may have any number of states."""
    kind = DescribeShareGroupOffsetsRequest
    group, topic = (
        kind.DescribeShareGroupOffsetsRequestGroup,
        kind.DescribeShareGroupOffsetsRequestTopic,
    )
    described: list[Any] = []

    def describe(context: object, request: Any) -> Any:
        described.extend(request.groups)
        answer = DescribeShareGroupOffsetsResponse
        found = answer.DescribeShareGroupOffsetsResponseGroup
        return Deferred.of(
            answer(groups=[found(group_id=each.group_id) for each in request.groups])
        )

    def describe_all(group_id: str) -> Iterator[tuple[Any, int]]:
        described.append(group_id)
        found = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
        answer = DescribeShareGroupOffsetsResponse(groups=[found(group_id=group_id)])
        yield Deferred.of(answer), 0

    parts = SimpleNamespace(describe_offsets=describe, describe_all_offsets=describe_all)
    sliced = Sliced(share_groups=parts)
    groups = [
        group(group_id="some", topics=[topic(topic_name="a", partitions=[0, 1, 0])]),
        group(group_id="some", topics=[topic(topic_name="a", partitions=[2])]),
        group(group_id="all", topics=[topic(topic_name="a", partitions=[0])]),
        group(group_id="all", topics=None),
    ]
    more = [group(group_id=f"g{index}", topics=None) for index in range(MANY)]
    response = in_slices(
        sliced, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, kind(groups=groups * 100 + more)
    )
    names = ["some", "all", *(f"g{index}" for index in range(MANY))]
    assert [each.group_id for each in response.groups] == names
    some, everything = described[:2]
    assert [(each.topic_name, each.partitions) for each in some.topics] == [("a", [0, 1, 2])]
    assert everything == "all"


def test_offsets_of_one_share_group_are_described_in_pieces() -> None:
    kind, answer = DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse
    asked: list[int] = []

    def describe(context: object, request: Any) -> Any:
        (group,) = request.groups
        asked.append(sum(len(topic.partitions) for topic in group.topics))
        topics = [
            answer.DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    answer.DescribeShareGroupOffsetsResponsePartition(partition_index=index)
                    for index in topic.partitions
                ],
            )
            for topic in group.topics
        ]
        found = answer.DescribeShareGroupOffsetsResponseGroup
        return Deferred.of(answer(groups=[found(group_id=group.group_id, topics=topics)]))

    sliced = Sliced(share_groups=SimpleNamespace(describe_offsets=describe))
    topic = kind.DescribeShareGroupOffsetsRequestTopic
    topics = [
        topic(topic_name="a", partitions=list(range(MANY))),
        topic(topic_name="b", partitions=[0]),
    ]
    group = kind.DescribeShareGroupOffsetsRequestGroup(group_id="some", topics=topics)
    response = in_slices(sliced, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, kind(groups=[group]))
    assert (max(asked), sum(asked)) == (PIECE_ITEMS, MANY + 1)
    (described,) = response.groups
    assert [
        (each.topic_name, [partition.partition_index for partition in each.partitions])
        for each in described.topics
    ] == [("a", list(range(MANY))), ("b", [0])]


def test_a_connection_keeps_no_long_name_of_its_client() -> None:
    with pytest.raises(KafkaError) as error:
        begin(
            Sliced(),
            ApiKey.API_VERSIONS,
            ApiVersionsRequest(client_software_name="x" * 1025, client_software_version="1"),
        )
    assert error.value.code == ErrorCode.INVALID_REQUEST


class FeatureController:
    """Keeps what it is asked for, and says that all is well."""

    def __init__(self) -> None:
        self.asked: list[UpdateFeaturesRequest] = []

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        self.asked.append(request)
        line = UpdateFeaturesResponse.UpdatableFeatureResult
        return Deferred.of(
            UpdateFeaturesResponse(
                results=[
                    line(feature=each.feature, error_message="NONE")
                    for each in request.feature_updates
                ]
            )
        )


def feature_updates(*names: str) -> UpdateFeaturesRequest:
    kind = UpdateFeaturesRequest.FeatureUpdateKey
    return UpdateFeaturesRequest(
        feature_updates=[
            kind(feature=name, max_version_level=number % 9) for number, name in enumerate(names)
        ]
    )


def test_the_controller_is_given_the_updates_that_decide() -> None:
    controller = FeatureController()
    sliced = Sliced(controller=controller)
    names = [f"unknown-{number}" for number in range(20 * MANY)]
    request = feature_updates("group.version", *names, "unknown-0", "share.version")
    outcome = begin(sliced, ApiKey.UPDATE_FEATURES, request, version=2)
    assert isinstance(outcome, Deferred) and not outcome.done and not controller.asked
    sliced.answer(outcome)
    decisive = controller.asked[0].feature_updates
    assert [each.feature for each in decisive] == ["group.version", "unknown-0", "share.version"]
    assert decisive[1] is request.feature_updates[-2], "the last one of a name counts"
    assert len(request.feature_updates) == len(names) + 3


def test_each_update_of_a_feature_has_its_line() -> None:
    sliced = Sliced(controller=FeatureController())
    request = feature_updates(*["group.version", "share.version"] * 5 * MANY)
    response = sliced.answer(begin(sliced, ApiKey.UPDATE_FEATURES, request, version=1))
    assert [line.feature for line in response.results] == [
        update.feature for update in request.feature_updates
    ]
    assert {line.error_message for line in response.results} == {"NONE"}


def test_a_small_update_of_features_has_no_pause() -> None:
    """The next request of its connection is not handled before it."""
    controller = FeatureController()
    sliced = Sliced(controller=controller)
    begin(sliced, ApiKey.UPDATE_FEATURES, feature_updates(*["group.version"] * 5000), version=1)
    assert controller.asked


def test_transactions_are_listed_in_steps() -> None:
    """A filter that is named again is looked up again, but an unknown one is answered once."""
    world = TransactionWorld()
    for number in range(3):
        Client(world, transactional_id=f"tx-{number}").init()
    sliced = Sliced(transactions=world.coordinator)
    filters = ["Nonsense", "Empty"] * (5 * MANY)
    request = ListTransactionsRequest(state_filters=filters)
    response = in_slices(sliced, ApiKey.LIST_TRANSACTIONS, request)
    assert response.unknown_state_filters == ["Nonsense"]
    assert [each.transactional_id for each in response.transaction_states] == [
        "tx-0",
        "tx-1",
        "tx-2",
    ]


def test_filters_of_listed_groups_are_read_in_steps() -> None:
    """Each name is passed on once, in lower case, and not looked through again."""
    asked: list[tuple[KeysView[str], KeysView[str]]] = []

    def list_groups(
        states: KeysView[str], types: KeysView[str]
    ) -> Generator[None, None, ListGroupsResponse]:
        yield
        asked.append((states, types))
        return ListGroupsResponse()

    sliced = Sliced(groups=SimpleNamespace(list_groups=list_groups))
    names = ["Stable", "Empty"] * (5 * MANY)
    request = ListGroupsRequest(states_filter=names, types_filter=names[::-1])
    assert in_slices(sliced, ApiKey.LIST_GROUPS, request) == ListGroupsResponse()
    ((states, types),) = asked
    assert (list(states), list(types)) == (["stable", "empty"], ["empty", "stable"])
    assert isinstance(states, KeysView)  # of what the steps made: no copy


def test_types_of_listed_resources_are_read_in_steps() -> None:
    image = SimpleNamespace(brokers={1: object()}, topics={"a": object()}, configs={})
    sliced = Sliced(image=image)
    request = ListConfigResourcesRequest(resource_types=[2, 4] * (5 * MANY))
    context = RequestContext(ApiKey.LIST_CONFIG_RESOURCES, 1)
    outcome = HANDLER_OF[ApiKey.LIST_CONFIG_RESOURCES].handle(sliced.services, context, request)
    assert isinstance(outcome, Deferred) and not outcome.done
    listed = sliced.answer(outcome).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [(4, "1"), (2, "a")]


def test_batches_of_a_share_partitions_state_are_written_in_parts() -> None:
    """A request that is not large is written before the next one of its connection."""
    kind, written = WriteShareGroupStateRequest, []

    def write(key: object, write: StateWrite) -> Deferred[ErrorCode]:
        written.append(write)
        return Deferred.of(ErrorCode.NONE)

    def request(count: int) -> WriteShareGroupStateRequest:
        batches = [kind.StateBatch(first_offset=number) for number in range(count)]
        partition = kind.PartitionData(state_batches=batches)
        return kind(group_id="g", topics=[kind.WriteStateData(partitions=[partition])])

    small = LARGE_REQUEST_BYTES // STATE_BATCH_BYTES
    sliced = Sliced(share_coordinator=SimpleNamespace(write=write), seconds=0.0)
    begin(sliced, ApiKey.WRITE_SHARE_GROUP_STATE, request(small))
    assert len(written) == 1
    large = 5 * BATCHES_PER_STEP
    in_slices(sliced, ApiKey.WRITE_SHARE_GROUP_STATE, request(large))
    parts = [[batch.first_offset for batch in write.batches] for write in written[1:]]
    assert [len(part) for part in parts] == [BATCHES_PER_STEP] * 5
    assert [offset for part in parts for offset in part] == list(range(large))


def test_very_many_transactions_are_listed_in_steps() -> None:
    """They may change between two steps."""
    world = TransactionWorld()
    Client(world, transactional_id="tx").init()
    (host,) = (host for host in world.coordinator.runtime.hosts() if host.shard.transactions)
    transactions = host.shard.transactions
    count = 5 * CHARACTERS_PER_TURN // (LISTED_COST + len("tx-100000"))
    for number in range(100_000, 100_000 + count):
        transactions[f"tx-{number}"] = transactions["tx"]._replace(transactional_id=f"tx-{number}")
    steps = world.coordinator.list_transactions(ListTransactionsRequest())
    for _ in range(4):
        next(steps)
        del transactions[next(iter(transactions))]
    response = at_once(steps)
    assert len(response.transaction_states) == count + 1


def test_very_long_transactional_ids_are_listed_in_steps() -> None:
    """A pattern may take microseconds for each character of an id."""
    world = TransactionWorld()
    Client(world, transactional_id="tx").init()
    (host,) = (host for host in world.coordinator.runtime.hosts() if host.shard.transactions)
    transactions = host.shard.transactions
    for number in range(10):
        name = f"{number}" * CHARACTERS_PER_TURN
        transactions[name] = transactions["tx"]._replace(transactional_id=name)
    pauses = 0
    steps = world.coordinator.list_transactions(
        ListTransactionsRequest(transactional_id_pattern="t.*")
    )
    try:
        while True:
            next(steps)
            pauses += 1
    except StopIteration as end:
        assert [one.transactional_id for one in end.value.transaction_states] == ["tx"]
    assert pauses == 10


def test_the_results_of_moved_replicas_are_built_in_steps() -> None:
    by_topic = {f"t-{number}": [object()] for number in range(5 * CHEAP_ITEMS)}
    names = list(by_topic)
    steps = _altered(by_topic)  # type: ignore[arg-type]  # of a response, as they are
    pauses = 0
    try:
        while True:
            next(steps)
            pauses += 1
            assert len(by_topic) >= len(names) - pauses * CHEAP_ITEMS
    except StopIteration as end:
        response = end.value
    assert pauses >= 5
    assert [result.topic_name for result in response.results] == names


def test_numbers_of_partitions_are_told_apart_in_steps() -> None:
    kind = DescribeShareGroupOffsetsRequest
    topic = kind.DescribeShareGroupOffsetsRequestTopic(
        topic_name="a", partitions=[*range(4 * NUMBERS_PER_STEP)] * 2
    )
    group = kind.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[topic])
    steps = _each_group_once([group])
    assert sum(1 for _ in steps) >= 7
    (found,) = at_once(_each_group_once([group]))
    assert [each.partitions for each in found.topics or ()] == [[*range(4 * NUMBERS_PER_STEP)]]
