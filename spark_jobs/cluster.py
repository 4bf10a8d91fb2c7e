"""What a start has to know of the cluster: its topics, their ids, partitions and offsets.

Asked over the wire with `kbroker.client`, before Spark starts, so that a mistake is one line after
seconds. That client speaks neither TLS nor SASL: with those only a socket is tried.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from .checkpoint import Offsets
from .errors import JobError

if TYPE_CHECKING:
    from kbroker.client.cluster import Client

T = TypeVar("T")

ANSWER_TIMEOUT_S: Final = 4.5
"""How long a bootstrap broker may take to accept a connection and to answer its first request."""

LOOK_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic: its id in text form (empty before Kafka 2.8), and by partition the first offset and
    the end (exclusive; the last stable offset under read_committed).
    """

    topic_id: str
    earliest: dict[int, int]
    latest: dict[int, int]


Topics = dict[str, TopicFacts]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read: named topics, or those that a Java regular expression matches."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        return self.pattern or ",".join(self.topics)

    def includes(self, topic: str) -> bool:
        """Whether a topic is read; True under a pattern that only Java understands."""
        if self.pattern is None:
            return topic in self.topics
        try:
            return re.fullmatch(self.pattern, topic) is not None
        except re.error:
            return True


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The subscribed topics, or why they are not known. record_bytes: average size of their records
    as stored, None if the brokers do not tell.
    """

    topics: Topics
    unknown_because: str = ""
    record_bytes: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the topics could be looked at."""
        return not self.unknown_because


def look(bootstrap_servers: str, subscription: Subscription, protocol: str) -> ClusterView:
    """The cluster as it is now. protocol: `security.protocol` of the job's Kafka options.

    Raises JobError if no broker answers within 5 s, a topic does not exist, the pattern matches
    none, or an advertised address cannot be reached.
    """
    return _run(_look(bootstrap_servers, subscription, protocol))


def group_offsets(bootstrap_servers: str, group: str, topics: Topics) -> Offsets:
    """What a consumer group has committed for these topics. Raises JobError if it is nothing."""
    from kbroker.protocol.errors import KafkaError

    from .wire.client import BlockingClient, ClusterAddress
    from .wire.groups import committed_offsets

    client = BlockingClient(ClusterAddress(bootstrap_servers, retry_timeout_s=LOOK_TIMEOUT_S))
    try:
        found = committed_offsets(
            client, group, {name: facts.latest for name, facts in topics.items()}
        )
    except KafkaError as error:
        raise JobError(str(error)) from error
    finally:
        client.close()
    if not found:
        raise JobError(f"group {group} has committed no offsets of {', '.join(topics)}")
    return found


def _run(coroutine: Coroutine[object, object, T]) -> T:
    from kbroker.client.cluster import StartupError
    from kbroker.protocol.errors import KafkaError

    try:
        return _completed(coroutine)
    except TimeoutError as error:
        raise JobError(f"the cluster did not answer within {LOOK_TIMEOUT_S:g} s") from error
    except (StartupError, KafkaError) as error:
        raise JobError(str(error)) from error


def _completed(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end, in another thread if this one runs an event loop: a notebook's
    does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


async def _look(bootstrap_servers: str, subscription: Subscription, protocol: str) -> ClusterView:
    from kbroker.client.bootstrap_servers import parse_bootstrap
    from kbroker.client.cluster import Client

    reached = await _reached(parse_bootstrap(bootstrap_servers))
    if protocol.upper() != "PLAINTEXT":
        return ClusterView({}, f"security.protocol is {protocol}")
    async with asyncio.timeout(LOOK_TIMEOUT_S):
        client = Client(reached, timeout_s=LOOK_TIMEOUT_S / 2)
        await _greet(client, reached)
        try:
            names = await _names(client, subscription)
            topics = await _topics(client, names)
            return ClusterView(topics, record_bytes=await _record_bytes(client, topics))
        finally:
            await client.close()


async def _reached(addresses: Sequence[tuple[str, int]]) -> str:
    """The addresses that accept a connection. Raises JobError if none does in time."""

    async def attempt(host: str, port: int) -> str | None:
        from kbroker.client.connection import connect_failure

        from .wire.connection import no_host_name

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return f"no answer within {ANSWER_TIMEOUT_S:g} s"
        except OSError as error:
            return connect_failure(error)
        except UnicodeError as error:
            return no_host_name(error)
        writer.close()
        return None

    shown = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]
    failures = await asyncio.gather(*(attempt(host, port) for host, port in addresses))
    found = [name for name, failure in zip(shown, failures, strict=True) if failure is None]
    if not found:
        reasons = (f"{name}: {why}" for name, why in zip(shown, failures, strict=True))
        raise JobError(f"no broker answers: {'; '.join(reasons)}")
    return ",".join(found)


async def _greet(client: Client, address: str) -> None:
    """Raises JobError if what accepts connections does not answer as a broker does."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await client.any_connection()
    except TimeoutError:
        raise JobError(
            f"no broker answers: {address} accepts connections, but there was no answer within "
            f"{ANSWER_TIMEOUT_S:g} s (does it expect TLS or SASL?)"
        ) from None


async def _names(client: Client, subscription: Subscription) -> list[str]:
    if subscription.pattern is None:
        return list(subscription.topics)
    response = await client.metadata(None)
    existing = sorted(
        topic.name for topic in response.topics if topic.name and not topic.is_internal
    )
    try:
        pattern = re.compile(subscription.pattern)
    except re.error as error:
        raise JobError(f"--subscribePattern {subscription.pattern}: {error}") from error
    names = [name for name in existing if pattern.fullmatch(name)]
    if not names:
        raise JobError(
            f"--subscribePattern {subscription.pattern} matches none of the "
            f"{len(existing)} topics of the cluster"
        )
    return names


async def _topics(client: Client, names: Iterable[str]) -> Topics:
    from kbroker.client.cluster import (
        EARLIEST_TIMESTAMP,
        LATEST_TIMESTAMP,
        ZERO_UUID,
        TopicPartition,
    )
    from kbroker.client.cluster_view import TopicView
    from kbroker.protocol.errors import ErrorCode, KafkaError

    async def view_of(name: str) -> TopicView:
        try:
            return await client.topic(name)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise JobError(f"topic {name} does not exist") from error

    views = {name: await client.retry(partial(view_of, name)) for name in names}
    partitions = [
        TopicPartition(name, partition)
        for name, view in views.items()
        for partition in view.partitions
    ]

    async def offsets(timestamp: int) -> dict[str, dict[int, int]]:
        found = await client.retry(
            lambda: client.list_offsets(dict.fromkeys(partitions, timestamp))
        )
        by_topic: dict[str, dict[int, int]] = {name: {} for name in views}
        for (topic, partition), answer in sorted(found.items()):
            by_topic[topic][partition] = answer.offset
        return by_topic

    earliest, latest = await offsets(EARLIEST_TIMESTAMP), await offsets(LATEST_TIMESTAMP)
    return {
        name: TopicFacts(
            "" if view.topic_id == ZERO_UUID else view.topic_id.hex(), earliest[name], latest[name]
        )
        for name, view in views.items()
    }


async def _record_bytes(client: Client, topics: Topics) -> float | None:
    """Average size of a record in the leaders' logs, as stored (compressed); None if there are no
    records or the brokers may not tell (it needs DESCRIBE on the cluster).
    """
    from kbroker.client.cluster import TopicPartition
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.messages.admin.log_dirs import (
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
    )

    by_leader: dict[int, set[TopicPartition]] = {}
    for name, facts in topics.items():
        for partition in facts.latest:
            place = TopicPartition(name, partition)
            by_leader.setdefault(await client.leader(place), set()).add(place)
    size_bytes = 0
    try:
        for leader_id, places in by_leader.items():
            wanted = [
                DescribeLogDirsRequest.DescribableLogDirTopic(
                    topic=name,
                    partitions=[place.partition for place in places if place.topic == name],
                )
                for name in sorted({place.topic for place in places})
            ]
            response = await client.to_node(
                leader_id, DescribeLogDirsRequest(topics=wanted), DescribeLogDirsResponse
            )
            for result in response.results:
                for topic in result.topics:
                    size_bytes += sum(
                        partition.partition_size
                        for partition in topic.partitions
                        if not partition.is_future_key
                    )
    except KafkaError:
        return None
    records = sum(
        end - facts.earliest[partition]
        for facts in topics.values()
        for partition, end in facts.latest.items()
    )
    return size_bytes / records if size_bytes > 0 and records > 0 else None
