"""A cluster in memory that decides as Kafka does about producer ids, epochs, sequences, markers and
what a reader of committed records sees; and faults that a test orders.

It takes the requests of `spark_jobs.wire.client` without bytes or sockets between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.codecs.codec import encode_parts
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.coordinators.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from tests.spark.exactly_once.scripted_log import PartitionLog

R = TypeVar("R", bound=Response)

NODE_ID = 1
DEAD_NODE_ID = 2
HOST, PORT = "broker", 9092
HOSTS = {NODE_ID: HOST, DEAD_NODE_ID: "dead"}


class FakeClock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int
    previous_epoch: int = -1
    timeout_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    ended: str = ""


class Fault(NamedTuple):
    """What happens to one request: an error code in its response, or a lost request or response."""

    api_key: ApiKey
    kind: str
    code: ErrorCode = ErrorCode.NONE
    topic: str | None = None


class ScriptedCluster:
    """One broker. requests: every API key that was handled, in order."""

    def __init__(self, **topics: int) -> None:
        self.clock = FakeClock()
        self.topics: dict[str, list[PartitionLog]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.transactions: dict[str, Transaction] = {}
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self.requests: list[ApiKey] = []
        self.faults: list[Fault] = []
        self.max_version: dict[int, int] = {}
        self.led_by_the_dead: set[TopicPartition] = set()
        """Partitions that Metadata says a second broker leads, where nothing listens."""
        self.is_coordinator_dead = False
        """FindCoordinator names that broker."""
        self.before: Callable[[Request], None] | None = None
        """Called with each request before it has its effect; `after` when it had."""
        self.after: Callable[[Request], None] | None = None
        self._next_producer_id = 1000
        for name, count in topics.items():
            self.create(name, count)

    def create(self, name: str, partitions: int, **configs: str) -> None:
        self.topics[name] = [PartitionLog() for _ in range(partitions)]
        self.configs[name] = {"cleanup.policy": "delete", "max.message.bytes": "1048588", **configs}

    def log(self, name: str, partition: int) -> PartitionLog:
        return self.topics[name][partition]

    def committed(self, name: str) -> list[list[bytes | None]]:
        """Values by partition, as a reader of committed records sees them."""
        return [[r.value for r in log.committed_records()] for log in self.topics[name]]

    def client(self, **address: float) -> BlockingClient:
        settings = ClusterAddress(f"{HOST}:{PORT}", **address)  # type: ignore[arg-type]
        return BlockingClient(settings, connect=self._connect, clock=self.clock)

    def _connect(self, host: str, port: int, timeout_s: float) -> FakeConnection:
        if (host, port) != (HOST, PORT):
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: nothing listens")
        return FakeConnection(self)

    def fail(
        self, api_key: ApiKey, code: ErrorCode, times: int = 1, topic: str | None = None
    ) -> None:
        """Answer the next requests of an API with an error."""
        self.faults += [Fault(api_key, "error", code, topic)] * times

    def lose(self, api_key: ApiKey, what: str, topic: str | None = None) -> None:
        """Lose the next request of an API, or its response: what is "request" or "response"."""
        self.faults.append(Fault(api_key, what, topic=topic))

    def time_out_transactions(self) -> None:
        """The coordinator aborts what is open, as after the transaction timeout."""
        for transaction in self.transactions.values():
            if transaction.partitions:
                self._fence(transaction)

    def take_fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.api_key != request.API_KEY:
                continue
            if fault.topic is not None and fault.topic not in _topics_of(request):
                continue
            self.faults.remove(fault)
            return fault
        return None

    # requests

    def handle(self, request: Request, code: ErrorCode) -> Response:
        """The response; code: an error to answer with instead of doing anything."""
        self.requests.append(ApiKey(request.API_KEY))
        if self.before is not None:
            self.before(request)
        response = self._respond(request, code)
        if self.after is not None:
            self.after(request)
        return response

    def _respond(self, request: Request, code: ErrorCode) -> Response:
        match request:
            case MetadataRequest():
                return self._metadata(request)
            case FindCoordinatorRequest():
                node_id = DEAD_NODE_ID if self.is_coordinator_dead else NODE_ID
                return FindCoordinatorResponse(
                    error_code=code, node_id=node_id, host=HOSTS[node_id], port=PORT
                )
            case CreateTopicsRequest():
                return self._create_topics(request, code)
            case DescribeConfigsRequest():
                return self._describe(request, code)
            case InitProducerIdRequest():
                return self._init_producer_id(request, code)
            case AddPartitionsToTxnRequest():
                return self._add_partitions(request, code)
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                return self._commit_offsets(request, code)
            case EndTxnRequest():
                return self._end(request, code)
            case ProduceRequest():
                return self._produce(request, code)
            case FetchRequest():
                return self._fetch(request, code)
            case ListOffsetsRequest():
                return self._list_offsets(request, code)
        raise AssertionError(request)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics = []
        for wanted in request.topics or ():
            logs = self.topics.get(wanted.name or "")
            if logs is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(
                    MetadataResponse.MetadataResponseTopic(error_code=code, name=wanted.name)
                )
                continue
            partitions = [
                MetadataResponse.MetadataResponsePartition(
                    partition_index=index, leader_id=self._leader(wanted.name or "", index)
                )
                for index in range(len(logs))
            ]
            topics.append(
                MetadataResponse.MetadataResponseTopic(name=wanted.name, partitions=partitions)
            )
        has_dead = self.is_coordinator_dead or self.led_by_the_dead
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=PORT)
            for node_id, host in HOSTS.items()
            if node_id == NODE_ID or has_dead
        ]
        return MetadataResponse(brokers=brokers, topics=topics)

    def _leader(self, topic: str, partition: int) -> int:
        is_dead = TopicPartition(topic, partition) in self.led_by_the_dead
        return DEAD_NODE_ID if is_dead else NODE_ID

    def _create_topics(self, request: CreateTopicsRequest, code: ErrorCode) -> CreateTopicsResponse:
        results = []
        for topic in request.topics:
            if not code and topic.name in self.topics:
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            if not code:
                configs = {config.name: config.value or "" for config in topic.configs}
                self.create(topic.name, topic.num_partitions)
                self.configs[topic.name].update(configs)
            results.append(
                CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name, error_code=code, error_message=None
                )
            )
        return CreateTopicsResponse(topics=results)

    def _describe(
        self, request: DescribeConfigsRequest, code: ErrorCode
    ) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            configs = [
                DescribeConfigsResponse.DescribeConfigsResourceResult(name=key, value=value)
                for key, value in self.configs[resource.resource_name].items()
                if not code and key in (resource.configuration_keys or ())
            ]
            results.append(
                DescribeConfigsResponse.DescribeConfigsResult(
                    error_code=code,
                    error_message=None,
                    resource_type=2,
                    resource_name=resource.resource_name,
                    configs=configs,
                )
            )
        return DescribeConfigsResponse(results=results)

    def _init_producer_id(
        self, request: InitProducerIdRequest, code: ErrorCode
    ) -> InitProducerIdResponse:
        if code:
            return InitProducerIdResponse(error_code=code)
        name = request.transactional_id or ""
        known = self.transactions.get(name)
        if known is None:
            known = self.transactions[name] = Transaction(self._next_producer_id, -1)
            self._next_producer_id += 1
        elif request.producer_id >= 0:
            if request.producer_epoch == known.previous_epoch:  # a repeated request
                return InitProducerIdResponse(
                    producer_id=known.producer_id, producer_epoch=known.epoch
                )
            if (request.producer_id, request.producer_epoch) != (known.producer_id, known.epoch):
                return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if known.partitions:
            self._fence(known)
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        known.previous_epoch = request.producer_epoch
        known.epoch += 1
        known.ended = ""
        known.timeout_ms = request.transaction_timeout_ms
        return InitProducerIdResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def _fence(self, transaction: Transaction) -> None:
        transaction.epoch += 1
        transaction.previous_epoch = -1
        self._complete(transaction, commit=False)

    def _complete(self, transaction: Transaction, *, commit: bool) -> None:
        for topic, partition in sorted(transaction.partitions):
            self.log(topic, partition).mark(
                transaction.producer_id, transaction.epoch, commit=commit
            )
        transaction.partitions = set()
        transaction.ended = "commit" if commit else "abort"

    def _refusal(self, name: str, producer_id: int, epoch: int) -> ErrorCode:
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if known.epoch == epoch else ErrorCode.PRODUCER_FENCED

    def _add_partitions(
        self, request: AddPartitionsToTxnRequest, code: ErrorCode
    ) -> AddPartitionsToTxnResponse:
        name = request.v3_and_below_transactional_id
        refusal = code or self._refusal(
            name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        wanted = [
            TopicPartition(topic.name, index)
            for topic in request.v3_and_below_topics
            for index in topic.partitions
        ]
        if not refusal:
            self.transactions[name].partitions |= set(wanted)
        topics = [
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=refusal
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _commit_offsets(
        self, request: TxnOffsetCommitRequest, code: ErrorCode
    ) -> TxnOffsetCommitResponse:
        topics = []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                if not code:
                    place = (request.group_id, topic.name, part.partition_index)
                    self.group_offsets[place] = part.committed_offset
                partitions.append(
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                )
            topics.append(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name=topic.name, partitions=partitions
                )
            )
        return TxnOffsetCommitResponse(topics=topics)

    def _end(self, request: EndTxnRequest, code: ErrorCode) -> EndTxnResponse:
        known = self.transactions[request.transactional_id]
        code = code or self._refusal(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        if not code:
            wanted = "commit" if request.committed else "abort"
            if known.partitions:
                self._complete(known, commit=request.committed)
            elif known.ended != wanted:
                code = ErrorCode.INVALID_TXN_STATE
        return EndTxnResponse(error_code=code)

    def _produce(self, request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            limit = int(self.configs[topic.name]["max.message.bytes"])
            answers = []
            for part in topic.partition_data:
                offset = -1
                error = code
                if not error:
                    log = self.log(topic.name, part.index)
                    data = bytes(part.records)  # type: ignore[arg-type]
                    error, offset = log.append(data, limit)
                answers.append(
                    ProduceResponse.PartitionProduceResponse(
                        index=part.index, error_code=error, base_offset=offset
                    )
                )
            topics.append(
                ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=answers)
            )
        return ProduceResponse(responses=topics)

    def _fetch(self, request: FetchRequest, code: ErrorCode) -> FetchResponse:
        ((topic, (part,)),) = ((topic, topic.partitions) for topic in request.topics)
        log = self.log(topic.topic, part.partition)
        is_committed = request.isolation_level == 1
        data, aborted = log.read(part.fetch_offset, committed=is_committed)
        partition = FetchResponse.PartitionData(
            partition_index=part.partition,
            error_code=code,
            high_watermark=log.end,
            last_stable_offset=log.last_stable_offset,
            aborted_transactions=[
                FetchResponse.AbortedTransaction(
                    producer_id=e.producer_id, first_offset=e.first_offset
                )
                for e in aborted
            ],
            records=data,
        )
        return FetchResponse(
            responses=[
                FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=[partition])
            ]
        )

    def _list_offsets(self, request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for part in topic.partitions:
                log = self.log(topic.name, part.partition_index)
                end = log.last_stable_offset if request.isolation_level == 1 else log.end
                answers.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=code,
                        offset=log.start if part.timestamp == -2 else end,
                    )
                )
            topics.append(
                ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers)
            )
        return ListOffsetsResponse(topics=topics)


def _topics_of(request: Request) -> Sequence[str]:
    if isinstance(request, ProduceRequest):
        return [topic.name for topic in request.topic_data]
    return ()


class FakeConnection:
    """A connection to the scripted broker: requests are handled when they are sent."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.is_closed = False
        self._cluster = cluster
        self._responses: dict[int, Response] = {}
        self._next_id = 0

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        lowest, highest = valid_versions(api_key)
        highest = min(highest, self._cluster.max_version.get(api_key, highest))
        if highest < lowest:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, ApiKey(api_key).name)
        return highest if max_version is None else min(highest, max_version)

    def send(self, request: Request, version: int) -> int:
        if self.is_closed:
            raise self._broken("closed")
        fault = self._cluster.take_fault(request)
        if fault is not None and fault.kind == "request":
            raise self._broken("the request was lost")
        encode_parts(request, version)  # which it may not be able to
        code = ErrorCode.NONE if fault is None else fault.code
        response = self._cluster.handle(request, code)
        self._next_id += 1
        if fault is None or fault.kind != "response":
            self._responses[self._next_id] = response
        return self._next_id

    def receive(self, correlation_id: int, response_type: type[R]) -> R:
        response = self._responses.pop(correlation_id, None)
        if response is None:
            raise self._broken("the response was lost")
        assert isinstance(response, response_type)
        return response

    def _broken(self, why: str) -> KafkaError:
        self.close()
        return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{HOST}:{PORT}: {why}")

    def close(self) -> None:
        self.is_closed = True
