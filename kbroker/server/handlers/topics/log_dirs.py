"""DescribeLogDirs v0-5 and AlterReplicaLogDirs v0-2: the log directories of this broker (KIP-113).

DescribeLogDirs: which logs are where, how large, how far a future log is behind. v2 is flexible, v3
has an error for the whole response, v4 the size of the disk (KIP-827), v5 whether a directory gets
new partitions (cordoned.log.dirs, KIP-1066). Topics null means all; a directory whose disk failed
is listed with KAFKA_STORAGE_ERROR.

AlterReplicaLogDirs: the response comes when the move has begun; DescribeLogDirs shows how it goes
on (`is_future_key`). A replica that is not here yet is made in that directory later, and answered
REPLICA_NOT_AVAILABLE. Deviation: Kafka also remembers directories for topics that do not exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Generator
from typing import Final

from kbroker.log.directories.directory import LogDirectory
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import TopicPartition
from kbroker.ports import at_once
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kbroker.replication.time_slices import Pace, Steps
from kbroker.server.api_handler import ApiHandler
from kbroker.server.policies.data import LOG_DIRS as POLICIES
from kbroker.server.requests import RequestContext
from kbroker.server.services import Services
from kbroker.server.slicing.sliced import CHEAP_ITEMS, once_each, sliced

MAX_INT64: Final = (1 << 63) - 1
MOVES_PER_STEP: Final = 8

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Described = DescribeLogDirsResponse.DescribeLogDirsPartition
_Altered = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


def describe_log_dirs_error(
    request: DescribeLogDirsRequest, code: ErrorCode, message: str
) -> DescribeLogDirsResponse:
    """The error of the whole response; before v3 there is no place for it, and no directory."""
    del request, message
    return DescribeLogDirsResponse(error_code=int(code))


@sliced
def handle_describe_log_dirs(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> Steps[DescribeLogDirsResponse]:
    """Every directory of log.dirs, in its order."""
    del context
    wanted: dict[TopicPartition, None] | None = None
    if request.topics is not None:
        wanted = yield from once_each(
            TopicPartition(topic.topic, index)
            for topic in request.topics
            for index in topic.partitions
        )
    results = []
    for directory in services.replicas.logs.all_directories:
        results.append((yield from _describe(services, directory, wanted)))
    return DescribeLogDirsResponse(results=results)


def _describe(
    services: Services, directory: LogDirectory, wanted: Container[TopicPartition] | None
) -> Generator[None, None, _Result]:
    result = _Result(log_dir=str(directory.path), is_cordoned=directory.is_cordoned)
    logs = services.replicas.logs
    try:
        result.total_bytes, result.usable_bytes, found = logs.usage(directory)
    except LogDirectoryError as error:
        logs.directory_failed(error)
        result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return result
    by_topic: dict[str, list[_Described]] = defaultdict(list)
    for count, (key, size_bytes, lag, is_future) in enumerate(found, 1):
        if count % CHEAP_ITEMS == 0:
            yield None
        if wanted is None or key in wanted:
            by_topic[key.topic].append(
                _Described(
                    partition_index=key.partition,
                    partition_size=size_bytes,
                    offset_lag=lag,
                    is_future_key=is_future,
                )
            )
    result.total_bytes = min(result.total_bytes, MAX_INT64)
    result.topics = [
        DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
        for name, partitions in by_topic.items()
    ]
    return result


def alter_replica_log_dirs_error(
    request: AlterReplicaLogDirsRequest, code: ErrorCode, message: str
) -> AlterReplicaLogDirsResponse:
    """Every replica fails in the same way."""
    return at_once(_refuse_moves(request, code, message))


def _refuse_moves(
    request: AlterReplicaLogDirsRequest, code: ErrorCode, message: str
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    del message
    by_topic: dict[str, list[_Altered]] = defaultdict(list)
    pace = Pace(CHEAP_ITEMS)
    for directory in request.dirs:
        if pace.is_due():
            yield None
        for topic in directory.topics:
            if pace.is_due():
                yield None
            altered = by_topic[topic.name]
            for index in topic.partitions:
                if pace.is_due():
                    yield None
                altered.append(_Altered(partition_index=index, error_code=int(code)))
    return (yield from _altered(by_topic))


@sliced
def handle_alter_replica_log_dirs(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    """Each replica has its own result; of a replica named twice the last directory counts."""
    del context
    moves: dict[TopicPartition, str] = {}
    pace = Pace(CHEAP_ITEMS)
    for directory in request.dirs:
        if pace.is_due():
            yield None
        for topic in directory.topics:
            if pace.is_due():
                yield None
            for index in topic.partitions:
                if pace.is_due():
                    yield None
                moves[TopicPartition(topic.name, index)] = directory.path
    by_topic: dict[str, list[_Altered]] = defaultdict(list)
    pace = Pace(MOVES_PER_STEP)
    for key, path in moves.items():
        if pace.is_due():
            yield None
        error = services.replicas.move_log(key, path)
        by_topic[key.topic].append(_Altered(partition_index=key.partition, error_code=int(error)))
    pace = Pace(CHEAP_ITEMS)
    while moves:  # freed in steps, too
        if pace.is_due():
            yield None
        moves.popitem()
    return (yield from _altered(by_topic))


def _altered(
    by_topic: dict[str, list[_Altered]],
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    response = AlterReplicaLogDirsResponse()
    pace = Pace(CHEAP_ITEMS)
    while by_topic:  # emptied: freeing 75,000 lists at once would take 10 ms
        if pace.is_due():
            yield
        name, partitions = by_topic.popitem()
        response.results.append(
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=name, partitions=partitions
            )
        )
    response.results.reverse()
    return response


HANDLERS: tuple[ApiHandler[Services], ...] = (
    ApiHandler(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        handle_alter_replica_log_dirs,
        alter_replica_log_dirs_error,
        POLICIES[ApiKey.ALTER_REPLICA_LOG_DIRS],
        refusal=_refuse_moves,
    ),
    ApiHandler(
        ApiKey.DESCRIBE_LOG_DIRS,
        handle_describe_log_dirs,
        describe_log_dirs_error,
        POLICIES[ApiKey.DESCRIBE_LOG_DIRS],
    ),
)
