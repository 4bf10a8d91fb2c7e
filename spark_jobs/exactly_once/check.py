"""What a start of a query with `kafka_sink` would do, for `check kafka-sink`: nothing is changed.

The driver itself reads the tokens behind an InitProducerId, which ends earlier transactions. Here
a transaction that is open is reported instead.
"""

from __future__ import annotations

from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..errors import JobError, StartRefused
from ..lag.committer import refusal
from ..lag.queries import Position, checkpoint_positions
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.groups import describe_group
from ..wire.offsets import is_missing
from .driver import QuerySettings
from .errors import SinkError, sink_error
from .options import SinkCheck
from .token_log import TokenLog, tokens_partition
from .tokens import ADVICE, Token, is_written
from .topics import TOKENS_TOPIC, check_tokens_policy, target_topic

LOOK_S: Final = 10.0
"""How long an open transaction of the query is waited for."""


def describe_sink_check(check: SinkCheck) -> str:
    """What a start would do, in one line. Raises StartRefused if the checkpoint and the topic of
    tokens contradict each other or the group is in use, JobError if something is missing.
    """
    address = ClusterAddress(check.bootstrap_servers, retry_timeout_s=LOOK_S)
    client = BlockingClient(address)
    try:
        return _describe(client, check)
    except KafkaError as error:
        raise sink_error(error, f"checking query {check.query_name}") from error
    finally:
        client.close()


def _describe(client: BlockingClient, check: SinkCheck) -> str:
    said = []
    for name in check.topics:
        count = target_topic(client, name).partition_count
        said.append(f"topic {name} with {count} partition{'' if count == 1 else 's'}")
    position = _position(check.checkpoint) if check.checkpoint else None
    if check.commit_group is not None:
        why = refusal(check.commit_group, describe_group(client, check.commit_group))
        if why is not None:
            raise StartRefused(why)
    try:
        token = newest_token(client, check.query_name)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        said.append("a batch of it is being written now, by this query or another driver")
    else:
        said.append(decided(check.query_name, token, position))
    return f"query {check.query_name}: {'; '.join(said)}"


def _position(checkpoint: str) -> Position:
    positions = checkpoint_positions(checkpoint)
    if len(positions) != 1:
        raise JobError(f"{checkpoint} has {len(positions)} checkpoints in it: name one of them")
    return positions[0]


def decided(query_name: str, token: Token | None, position: Position | None) -> str:
    """What the first batch of a start becomes. token: the newest of the query. position: of its
    checkpoint, None without one. Raises StartRefused.
    """
    newest = "no batch was written yet" if token is None else f"batch {token.batch_id} is written"
    if position is None or position.batch_id is None:
        return newest
    batch_id = position.batch_id + 1
    wanted = Token(position.query_id, batch_id, 0, position.planned or {})
    try:
        is_skipped = is_written(token, wanted, query_name=query_name, is_adopted=False)
    except SinkError as error:
        raise StartRefused(str(error)) from error
    if is_skipped and position.planned is None:
        raise StartRefused(
            f"batch {batch_id} of query {query_name} is in the topic, and {position.name} has not "
            "planned it: the checkpoint is an older copy, and skipping the batch would leave out "
            f"what Spark plans for it now: {ADVICE}"
        )
    action = "is skipped, since the topic has it" if is_skipped else "is written"
    return f"{newest}; a start goes on at batch {batch_id}, which {action}"


def newest_token(client: BlockingClient, query_name: str) -> Token | None:
    """The newest token of a query, None before its first batch; nothing is changed. Raises
    KafkaError of CONCURRENT_TRANSACTIONS while a transaction of the query is open.
    """
    try:
        count = client.retry(lambda: client.partition_count(TOKENS_TOPIC), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
        return None  # the first batch creates it
    check_tokens_policy(client, TOKENS_TOPIC)
    transactional_id = QuerySettings(query_name, ()).transactional_id
    place = TopicPartition(TOKENS_TOPIC, tokens_partition(transactional_id, count))
    try:
        token, _ = TokenLog(client, place, transactional_id).read()
    except SinkError as error:
        if isinstance(error.__cause__, KafkaError):
            raise error.__cause__ from None
        raise
    return token
