"""Checks before Spark starts: whether the cluster responds, has the topics, and can be
reached at its advertised addresses, and whether output and checkpoint belong together.

Spark itself would report the same after minutes of retries, as Java stack traces.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable, Sequence

from spark_jobs.session import JobError

CONNECT_TIMEOUT_S = 5.0


def check_cluster(
    bootstrap_servers: str, topics: Sequence[str], kafka_options: dict[str, str]
) -> None:
    """Raises JobError unless the cluster answers, has the topics, and each of their leaders can be
    reached. With TLS or SASL only whether something listens at a bootstrap address.
    """
    from kbroker.client.cluster import parse_bootstrap
    from kbroker.model import StartupError
    from kbroker.protocol.errors import KafkaError

    try:
        if kafka_options.get("kafka.security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
            asyncio.run(_check_topics(bootstrap_servers, topics))
        else:
            _check_sockets(parse_bootstrap(bootstrap_servers))
    except (StartupError, KafkaError) as error:
        raise JobError(str(error)) from error


async def _check_topics(bootstrap_servers: str, topics: Sequence[str]) -> None:
    from kbroker.client.cluster import Client
    from kbroker.protocol.errors import ErrorCode, KafkaError

    async with Client(bootstrap_servers) as client:
        response = await client.metadata(topics)
        for topic in response.topics:
            if topic.error_code:
                raise KafkaError(ErrorCode(topic.error_code), f"topic {topic.name}")
        leaders = {
            partition.leader_id
            for topic in response.topics
            for partition in topic.partitions
            if partition.leader_id >= 0
        }
        for node_id in sorted(leaders or client.brokers):
            await client.retry(lambda node_id=node_id: client.node(node_id))


def _check_sockets(addresses: Sequence[tuple[str, int]]) -> None:
    failures = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise JobError(f"no broker answers: {'; '.join(failures)}")


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, without a scheme such as s3a://."""
    return ":" not in path.partition("/")[0]


def check_writable(option: str, path: str) -> None:
    """Raises JobError unless files can be written into a local folder, which is made if need be."""
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise JobError(f"{option} {path} cannot be written: {error.strerror or error}") from error


def check_pair(output: str, checkpoint: str, has_files: Callable[[str], bool]) -> None:
    """Raises JobError where output and checkpoint do not belong together.

    With a checkpoint alone Spark would go on behind records that are nowhere any more; with an
    output alone it would skip the first batches, as their numbers are in `_spark_metadata`.
    has_files: whether a folder is there with anything in it.
    """
    is_known = has_files(f"{output}/_spark_metadata")
    if has_files(f"{checkpoint}/commits") and not is_known:
        raise JobError(
            f"the checkpoint {checkpoint} says that records were archived, but {output} has none "
            "of them (no _spark_metadata): bring the output back, or remove the checkpoint to "
            "archive all that Kafka still has"
        )
    if is_known and not has_files(f"{checkpoint}/offsets"):
        raise JobError(
            f"{output} was written with another checkpoint than {checkpoint}: name that one with "
            "--checkpoint, or another --output"
        )


def has_local_files(path: str) -> bool:
    """Whether a local folder is there with anything in it."""
    try:
        return bool(os.listdir(path))
    except OSError:
        return False
