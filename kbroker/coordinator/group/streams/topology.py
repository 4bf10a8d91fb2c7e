"""The topology of a streams group (KIP-1071): its source topics, repartition topics and changelogs,
and its configuration against the topics of the cluster.

A subtopology has as many tasks as the largest of its source topics has partitions. Repartition
topics between subtopologies and changelogs of state stores are internal topics of the group: their
partition counts follow from the topics that exist, and missing ones are to be created.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from kbroker.coordinator.group.streams.records import Topology
from kbroker.coordinator.group.streams.status import StreamsStatus
from kbroker.coordinator.topics import ClusterTopic
from kbroker.metadata.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topic_names import name_error
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.streams_groups import StreamsGroupHeartbeatRequest

MAX_TASKS: Final = 100_000
"""The maximum number of tasks of one group: the record of a member that has them all is just under
a megabyte.
"""
NAMES_SHOWN: Final = 3
"""The maximum number of missing topics in the status detail for a client."""

Topics = Mapping[str, ClusterTopic]
_RequestTopic = StreamsGroupHeartbeatRequest.TopicInfo


class _UnfitTopicsError(Exception):
    """The cluster's topics do not match the topology."""

    def __init__(self, status: StreamsStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """A subtopology with its task count. inputs: the topics that its tasks read; partition_counts:
    those of its internal topics, by name.
    """

    task_count: int
    inputs: frozenset[str]
    partition_counts: Mapping[str, int]
    is_stateful: bool


class ConfiguredTopology(msgspec.Struct, frozen=True):
    """A topology configured against the cluster's topics. subtopologies: by id, in order; empty if
    the topics do not match. missing: internal topics to create. problem: status and reason why no
    task can be assigned.
    """

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology]
    missing: tuple[CreateTopicsRequest.CreatableTopic, ...] = ()
    problem: tuple[StreamsStatus, str] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


def topology_of(request: StreamsGroupHeartbeatRequest.Topology) -> Topology:
    """The record value for the topology of a heartbeat. Raises KafkaError(STREAMS_INVALID_TOPOLOGY)
    for a topology that contradicts itself.
    """
    topology = Topology(
        epoch=request.epoch,
        subtopologies=[
            Topology.Subtopology(
                subtopology_id=one.subtopology_id,
                source_topics=one.source_topics,
                source_topic_regex=one.source_topic_regex,
                state_changelog_topics=_topic_infos(one.state_changelog_topics),
                repartition_sink_topics=one.repartition_sink_topics,
                repartition_source_topics=_topic_infos(one.repartition_source_topics),
                copartition_groups=[
                    Topology.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in one.copartition_groups
                ],
            )
            for one in request.subtopologies
        ],
    )
    _check(topology)
    return topology


def same_topology(one: Topology, other: Topology) -> bool:
    """Whether both are equal, apart from the order of their subtopologies."""
    return one.epoch == other.epoch and _by_id(one) == _by_id(other)


def required_topics(topology: Topology) -> set[str]:
    """Names of all topics of the topology: sources, repartition topics, changelogs."""
    names: set[str] = set()
    for one in topology.subtopologies:
        names.update(_inputs(one), (info.name for info in one.state_changelog_topics))
    return names


def reader_of(topology: Topology) -> dict[str, str]:
    """The id of the subtopology that reads a topic, by topic."""
    return {name: one.subtopology_id for one in topology.subtopologies for name in _inputs(one)}


def configure(topology: Topology, topics: Topics) -> ConfiguredTopology:
    """Decide the number of tasks and the topics to create. Raises
    KafkaError(STREAMS_INVALID_TOPOLOGY) for a topology that no set of topics can satisfy.
    """
    try:
        return _Configuration(topology, topics).decide()
    except _UnfitTopicsError as unfit:
        return ConfiguredTopology(topology.epoch, {}, problem=(unfit.status, str(unfit)))


class _Configuration:
    """One run of `configure`. _counts: partition counts decided for internal topics; a topic that
    exists keeps its own count.
    """

    def __init__(self, topology: Topology, topics: Topics) -> None:
        self._topology = topology
        self._subtopologies = [one for _, one in sorted(_by_id(topology).items())]
        self._topics = topics
        self._counts: dict[str, int] = {}
        self._infos = {
            info.name: info for one in self._subtopologies for info in one.repartition_source_topics
        }

    def decide(self) -> ConfiguredTopology:
        self._check_sources()
        self._count_repartition_topics()
        for one in self._subtopologies:
            for group in one.copartition_groups:
                self._enforce(sorted(_copartitioned(one, group)))
        for one in self._subtopologies:
            count = self._task_count(one)
            self._counts.update({info.name: count for info in one.state_changelog_topics})
        missing = self._missing()
        tasks = sum(self._task_count(one) for one in self._subtopologies)
        if tasks > MAX_TASKS:
            raise _invalid(f"{tasks} tasks are more than {MAX_TASKS}.")
        problem = None
        if missing:
            names = _summary(sorted(topic.name for topic in missing))
            problem = (
                StreamsStatus.MISSING_INTERNAL_TOPICS,
                f"Internal topics are missing: {names}",
            )
        configured = {
            one.subtopology_id: ConfiguredSubtopology(
                task_count=self._task_count(one),
                inputs=frozenset(_inputs(one)),
                partition_counts={info.name: self._wanted(info) for info in _internal(one)},
                is_stateful=bool(one.state_changelog_topics),
            )
            for one in self._subtopologies
        }
        return ConfiguredTopology(self._topology.epoch, configured, tuple(missing), problem)

    def _check_sources(self) -> None:
        missing = {
            name
            for one in self._subtopologies
            for name in one.source_topics
            if name not in self._topics
        }
        if missing:
            raise _UnfitTopicsError(
                StreamsStatus.MISSING_SOURCE_TOPICS,
                f"Source topics {_summary(sorted(missing))} are missing.",
            )

    def _count_of(self, name: str) -> int | None:
        topic = self._topics.get(name)
        return self._counts.get(name) if topic is None else len(topic.partitions)

    def _wanted(self, info: Topology.TopicInfo) -> int:
        return info.partitions or self._counts[info.name]

    def _count_repartition_topics(self) -> None:
        """A repartition topic has as many partitions as the subtopology that writes it has tasks,
        unless the application says how many.
        """
        counts = self._counts
        for one in self._subtopologies:
            for info in one.repartition_source_topics:
                if info.partitions:
                    counts[info.name] = info.partitions
        self._count_sinks()
        for one in self._subtopologies:
            for info in one.repartition_source_topics:
                if info.name not in counts:
                    raise _invalid(f"No subtopology writes the repartition topic {info.name}.")

    def _count_sinks(self) -> None:
        """Derive the counts of sink topics from input topics, as Kafka does by repeated passes over
        the subtopologies in order: the first known input of a subtopology decides its sinks. A heap
        of (pass, subtopology) visits only subtopologies with a new input.
        """
        counts, readers = self._counts, self._readers()
        queue = [(0, index) for index in range(len(self._subtopologies))]
        done: set[int] = set()
        while queue:
            turn, index = heapq.heappop(queue)
            one = self._subtopologies[index]
            known = [
                *(counts.get(info.name) for info in one.repartition_source_topics),
                *(self._count_of(name) for name in one.source_topics),
            ]
            count = max((number for number in known if number is not None), default=None)
            if count is None or index in done:
                continue
            done.add(index)
            for sink in one.repartition_sink_topics:
                if sink not in counts:
                    counts[sink] = count
                    for reader in readers.get(sink, ()):
                        heapq.heappush(queue, (turn + (reader < index), reader))
        for index, one in enumerate(self._subtopologies):
            if index not in done and any(
                sink not in counts for sink in one.repartition_sink_topics
            ):
                raise _invalid("The repartition topics form a cycle.")

    def _readers(self) -> dict[str, list[int]]:
        """Indexes of the subtopologies that read a repartition topic, by the topic's name."""
        readers: dict[str, list[int]] = {}
        for index, one in enumerate(self._subtopologies):
            for info in one.repartition_source_topics:
                readers.setdefault(info.name, []).append(index)
        return readers

    def _enforce(self, names: list[str]) -> None:
        """Give the copartitioned topics the same number of partitions, or raise."""
        infos = {name: self._infos[name] for name in names if name in self._infos}
        fixed = {name: self._count_of(name) or 0 for name, info in infos.items() if info.partitions}
        given = {name: self._count_of(name) or 0 for name in names if name not in infos} or fixed
        if len(set(given.values())) > 1:
            counts = ", ".join(f"{name}={count}" for name, count in sorted(given.items()))
            raise _UnfitTopicsError(
                StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Following topics do not have the same number of partitions: [{{{counts}}}]",
            )
        if not infos:
            return
        candidates = given or {name: self._count_of(name) or 0 for name in infos}
        count = max(candidates.values())
        for name in infos:
            known = self._count_of(name)
            if name in fixed and known != count:
                raise _UnfitTopicsError(
                    StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{known}] of repartition topic [{name}] doesn't "
                    f"match number of partitions [{count}] of the source topic.",
                )
            self._counts[name] = count

    def _task_count(self, one: Topology.Subtopology) -> int:
        return max(self._count_of(name) or 0 for name in _inputs(one))

    def _missing(self) -> list[CreateTopicsRequest.CreatableTopic]:
        missing = {}
        for one in self._subtopologies:
            for info in _internal(one):
                count = self._wanted(info)
                topic = self._topics.get(info.name)
                if topic is None:
                    missing[info.name] = _creatable(info, count)
                elif len(topic.partitions) != count:
                    raise _UnfitTopicsError(
                        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Existing topic {info.name} has different number of partitions: expected "
                        f"{count}, found {len(topic.partitions)}",
                    )
        return list(missing.values())


def _check(topology: Topology) -> None:
    if topology.epoch < 0:
        raise _invalid(f"There is no topology epoch {topology.epoch}.")
    if len(_by_id(topology)) < len(topology.subtopologies):
        raise _invalid("Two subtopologies have the same id.")
    names = sorted(
        required_topics(topology).union(
            *(one.repartition_sink_topics for one in topology.subtopologies)
        )
    )
    for name in names:
        if name in INTERNAL_TOPICS:
            raise _invalid(f"Topic {name} is Kafka's own and no part of a topology.")
        if name_error(name) is not None:
            raise _invalid(f"{name} is no name of a topic.")
    for one in topology.subtopologies:
        if not any(_inputs(one)):
            raise _invalid(f"Subtopology {one.subtopology_id} reads nothing.")
        for info in one.state_changelog_topics:
            if info.partitions:
                raise _invalid(f"Changelog {info.name} can't choose its number of partitions.")
        for info in one.repartition_source_topics:
            if info.partitions < 0:
                raise _invalid(f"Topic {info.name} can't have {info.partitions} partitions.")
        for group in one.copartition_groups:
            if not (
                all(0 <= index < len(one.source_topics) for index in group.source_topics)
                and all(
                    0 <= index < len(one.repartition_source_topics)
                    for index in group.repartition_source_topics
                )
            ):
                raise _invalid("A copartition group names topics that are not there.")


def _invalid(words: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, words)


def _by_id(topology: Topology) -> dict[str, Topology.Subtopology]:
    return {one.subtopology_id: one for one in topology.subtopologies}


def _inputs(one: Topology.Subtopology) -> Iterator[str]:
    yield from one.source_topics
    for info in one.repartition_source_topics:
        yield info.name


def _internal(one: Topology.Subtopology) -> Iterator[Topology.TopicInfo]:
    yield from one.repartition_source_topics
    yield from one.state_changelog_topics


def _copartitioned(one: Topology.Subtopology, group: Topology.CopartitionGroup) -> set[str]:
    return {one.source_topics[index] for index in group.source_topics} | {
        one.repartition_source_topics[index].name for index in group.repartition_source_topics
    }


def _topic_infos(infos: Iterable[_RequestTopic]) -> list[Topology.TopicInfo]:
    return [
        Topology.TopicInfo(
            name=info.name,
            partitions=info.partitions,
            replication_factor=info.replication_factor,
            topic_configs=[
                Topology.TopicConfig(key=config.key, value=config.value)
                for config in info.topic_configs
            ],
        )
        for info in infos
    ]


def _creatable(info: Topology.TopicInfo, count: int) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=info.name,
        num_partitions=count,
        replication_factor=info.replication_factor or -1,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=config.key, value=config.value)
            for config in info.topic_configs
        ],
    )


def _summary(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - NAMES_SHOWN
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if more <= 0 else f"{shown} and {more} additional topics"
