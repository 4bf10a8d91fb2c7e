"""A scripted broker on a free port: real frames, answers that a test may replace."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pytest

from kbroker.protocol.apis import ApiKey, request_class, valid_versions
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import decode_request_header, encode_response_frame
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorResponse
from kbroker.protocol.messages.coordinators.transactions import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
)
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse
from tests.batch_offsets import assign_offsets

TOPIC_ID = bytes(range(16))
DROP = object()
"""An answer that ends the connection instead."""

SERVED = [
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
]


class FakeBroker:
    """Topic `events` with two partitions, kept in memory. `script` queues answers for one API.

    A scripted answer is a message, DROP, a function of (request, version), or None for silence.
    context: of TLS, None without.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self.versions = {int(key): valid_versions(key) for key in SERVED}
        self.logs: dict[int, bytearray] = {0: bytearray(), 1: bytearray()}
        self.end_offsets = {0: 0, 1: 0}
        self.requests: list[tuple[int, int, Any]] = []
        self.host, self.port = "127.0.0.1", 0
        self._scripts: dict[int, list[Any]] = {}
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, self.host, self.port, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def script(self, api_key: ApiKey, *answers: Any) -> None:
        """Give these answers to the next requests of that API, then the usual ones again."""
        self._scripts.setdefault(int(api_key), []).extend(answers)

    def asked(self, api_key: ApiKey) -> list[Any]:
        """The requests of one API so far."""
        return [message for key, _, message in self.requests if key == api_key]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if not await self._answer(await reader.readexactly(size), writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        header = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        low, high = self.versions[key]
        if key == ApiKey.API_VERSIONS and not low <= version <= high:
            apis = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)]
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=apis)
            self._write(writer, key, 0, header.correlation_id, refusal)
            return True
        assert low <= version <= high, f"{ApiKey(key).name} {version}"
        message, end = decode(request_class(key), frame, version, header.body_position)
        assert end == len(frame)
        self.requests.append((key, version, message))
        scripted = self._scripts.get(key)
        answer = scripted.pop(0) if scripted else getattr(self, f"on_{ApiKey(key).name.lower()}")
        if callable(answer):
            answer = answer(message, version)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is DROP:
            return False
        if isinstance(answer, bytes):
            writer.write(answer)
        elif answer is not None:
            self._write(writer, key, version, header.correlation_id, answer)
        return True

    @staticmethod
    def _write(
        writer: asyncio.StreamWriter, key: int, version: int, correlation_id: int, answer: Any
    ) -> None:
        for part in encode_response_frame(key, version, correlation_id, answer):
            assert isinstance(part, bytes | bytearray | memoryview)
            writer.write(bytes(part))

    # -- the usual answers ------------------------------------------------------------------------

    def on_api_versions(self, request: Any, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            ]
        )

    def on_metadata(self, request: Any, version: int, leader_id: int = 1) -> MetadataResponse:
        wanted = None if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            MetadataResponse.MetadataResponseTopic(
                name=name,
                topic_id=TOPIC_ID if name == "events" else bytes(16),
                error_code=0 if name == "events" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        partition_index=index, leader_id=leader_id, leader_epoch=0
                    )
                    for index in (self.logs if name == "events" else ())
                ],
            )
            for name in (["events"] if wanted is None else wanted)
        ]
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=self.host, port=self.port)
        return MetadataResponse(brokers=[broker], cluster_id="fake", controller_id=1, topics=topics)

    def on_init_producer_id(self, request: Any, version: int) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=77, producer_epoch=3)

    def on_add_partitions_to_txn(self, request: Any, version: int) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse()

    def on_end_txn(self, request: Any, version: int) -> EndTxnResponse:
        return EndTxnResponse()

    def on_produce(self, request: Any, version: int) -> ProduceResponse | None:
        responses = []
        for topic in request.topic_data:
            partitions = []
            for partition in topic.partition_data:
                batch = bytearray(partition.records)
                base_offset = self.end_offsets[partition.index]
                self.end_offsets[partition.index] = assign_offsets(batch, base_offset, 0)
                self.logs[partition.index] += batch
                partitions.append(
                    ProduceResponse.PartitionProduceResponse(
                        index=partition.index, base_offset=base_offset
                    )
                )
            responses.append(
                ProduceResponse.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
                )
            )
        return ProduceResponse(responses=responses) if request.acks else None

    def on_fetch(self, request: Any, version: int) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchResponse.FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[
                        FetchResponse.PartitionData(
                            partition_index=partition.partition,
                            high_watermark=self.end_offsets[partition.partition],
                            records=bytes(self.logs[partition.partition]),
                            aborted_transactions=None,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def on_list_offsets(self, request: Any, version: int) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsResponse.ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            offset=(
                                self.end_offsets[partition.partition_index]
                                if partition.timestamp == -1
                                else 0
                            ),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def on_find_coordinator(self, request: Any, version: int) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host=self.host, port=self.port)


@pytest.fixture
def run() -> Callable[..., None]:
    """Run a test's coroutine function with a fake broker. context: of TLS, None without."""

    def run_with_broker(
        test: Callable[[FakeBroker], Any], context: ssl.SSLContext | None = None
    ) -> None:
        async def body() -> None:
            async with asyncio.timeout(20):
                async with FakeBroker(context) as broker:
                    await test(broker)
                    await asyncio.sleep(0)

        asyncio.run(body())

    return run_with_broker
