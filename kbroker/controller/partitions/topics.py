"""CreateTopics and DeleteTopics: what the controller says to each topic, and the records that
follow.

Outcomes are per topic; the words of the messages are Kafka's, since people search for them.
Neighbours: `placement` chooses the brokers, `configs` knows what a topic's settings come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from kbroker.controller.configs.topic_configs import config_records, validate
from kbroker.controller.partitions.placement import (
    bad_assignment,
    check_replicas,
    new_partition_record,
    place,
    usable_for_placement,
)
from kbroker.controller.policies import CreateTopicPolicy, NewTopic, PolicyViolation
from kbroker.controller.result import ChargePartitions, ControllerResult, free_of_charge
from kbroker.metadata.configs import TopicSettings, effective_configs
from kbroker.metadata.image import MetadataImage, metric_name
from kbroker.metadata.topic_names import name_error
from kbroker.model import ZERO_UUID, Uuid, random_uuid
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.stored.metadata_records import (
    RemoveTopicRecord,
    TopicRecord,
)

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
PARTITIONS_PER_STEP: Final = 256
"""Partitions whose records are made in one step of a decision: half a millisecond of work."""
TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."

_MAPS_TO_ID: Final = "The provided topic name maps to an ID that was already supplied."

CreatableTopic = CreateTopicsRequest.CreatableTopic
CreatableTopicResult = CreateTopicsResponse.CreatableTopicResult
DeletableTopicResult = DeleteTopicsResponse.DeletableTopicResult


class TopicDefaults(msgspec.Struct, frozen=True):
    """num.partitions and default.replication.factor: what -1 stands for."""

    partition_count: int
    replication_factor: int


def wanted_partitions(topic: CreatableTopic, default_count: int) -> int:
    """How many partitions a request wants of this topic. default_count: num.partitions."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == -1:
        return default_count
    return max(topic.num_partitions, 0)


class TopicCreation:
    """One CreateTopics request being decided on an image."""

    __slots__ = (
        "_charge",
        "_decided",
        "_defaults",
        "_image",
        "_policy",
        "_random",
        "_settings",
        "records",
    )

    def __init__(
        self,
        image: MetadataImage,
        *,
        defaults: TopicDefaults,
        settings: TopicSettings,
        random: Random,
        charge: ChargePartitions = free_of_charge,
        policy: CreateTopicPolicy | None = None,
    ) -> None:
        self._image = image
        self._charge = charge
        self._policy = policy
        self._defaults = defaults
        self._settings = settings
        self._random = random
        self._decided: dict[str, str] = {}
        self.records: list[Message] = []

    def decide_in_steps(
        self, request: CreateTopicsRequest, describable: frozenset[str] | None = None
    ) -> Generator[None, None, ControllerResult[CreateTopicsResponse]]:
        """The response for all topics, in order of the request; doubled names once, at the end.
        Nothing else is decided on the image before the last step.

        describable: topics whose configs may be told; None for all.
        """
        counts = Counter(topic.name for topic in request.topics)
        default_count = self._defaults.partition_count
        wanted = sum(wanted_partitions(topic, default_count) for topic in request.topics)
        if wanted > MAX_PARTITIONS_PER_REQUEST:
            message = TOO_MANY_PARTITIONS
            refused = [_create_error(name, ErrorCode.POLICY_VIOLATION, message) for name in counts]
            return ControllerResult([], CreateTopicsResponse(topics=refused))
        results: list[CreatableTopicResult] = []
        for topic in request.topics:
            if counts[topic.name] == 1:
                results.append((yield from self._decide_one(topic, describable)))
        results += [
            _create_error(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            for name, count in counts.items()
            if count > 1
        ]
        records = [] if request.validate_only else self.records
        return ControllerResult(records, CreateTopicsResponse(topics=results))

    def _decide_one(
        self, topic: CreatableTopic, describable: frozenset[str] | None
    ) -> Generator[None, None, CreatableTopicResult]:
        try:
            self._check_name(topic.name)
            configs = {config.name: config.value for config in topic.configs}
            values = validate(configs)
            assignments = self._assignments(topic)
            self._ask_policy(topic, assignments, values)
            self._charge(len(assignments))
        except KafkaError as error:
            return _create_error(topic.name, error.code, error.message)
        topic_id = self._new_topic_id()
        self.records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        self.records += config_records(self._image, topic.name, values)
        for start in range(0, len(assignments), PARTITIONS_PER_STEP):
            yield
            some = assignments[start : start + PARTITIONS_PER_STEP]
            self.records += self._partition_records(topic_id, start, some)
        self._decided[metric_name(topic.name)] = topic.name
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
        )
        if describable is None or topic.name in describable:
            result.configs = effective_configs(self._settings, self._image, values)
        else:
            result.num_partitions = result.replication_factor = -1
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result

    def _ask_policy(
        self, topic: CreatableTopic, assignments: list[list[int]], configs: Mapping[str, str]
    ) -> None:
        """Raises KafkaError(POLICY_VIOLATION)."""
        if self._policy is None:
            return
        is_manual = bool(topic.assignments)
        new = NewTopic(
            topic.name,
            None if is_manual else len(assignments),
            None if is_manual else len(assignments[0]),
            dict(enumerate(assignments)) if is_manual else None,
            configs,
        )
        try:
            self._policy.validate(new)
        except PolicyViolation as violation:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from violation

    def _check_name(self, name: str) -> None:
        problem = name_error(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Creation of internal topic __cluster_metadata is prohibited.",
            )
        if name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            metric = metric_name(name)
            collides = self._image.names_by_metric.get(metric) or self._decided.get(metric)
            if collides is not None:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{name}' collides with existing topic: {collides}",
                )

    def _new_topic_id(self) -> Uuid:
        while True:
            topic_id = random_uuid(self._random)
            if topic_id not in self._image.topics_by_id:
                return topic_id

    def _assignments(self, topic: CreatableTopic) -> list[list[int]]:
        """Replicas per partition, preferred leader first."""
        if topic.assignments:
            return self._manual_assignments(topic)
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions < -1 or topic.num_partitions == 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        partition_count = (
            self._defaults.partition_count if topic.num_partitions == -1 else topic.num_partitions
        )
        factor = (
            self._defaults.replication_factor
            if topic.replication_factor == -1
            else topic.replication_factor
        )
        try:
            placed = place(
                usable_for_placement(self._image),
                partition_count=partition_count,
                replication_factor=factor,
                random=self._random,
            )
        except KafkaError as error:
            message = f"Unable to replicate the partition {factor} time(s): {error.message}"
            raise KafkaError(error.code, message) from error
        return placed

    def _manual_assignments(self, topic: CreatableTopic) -> list[list[int]]:
        for given, what in (
            (topic.replication_factor, "replication factor"),
            (topic.num_partitions, "numPartitions"),
        ):
            if given != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        by_index: dict[int, list[int]] = {}
        for assignment in topic.assignments:
            index, replicas = assignment.partition_index, assignment.broker_ids
            if index in by_index:
                raise bad_assignment(
                    f"Found multiple manual partition assignments for partition {index}"
                )
            first = next(iter(by_index.values()), None)
            check_replicas(self._image, replicas, None if first is None else len(first))
            by_index[index] = list(replicas)
            if not any(self._image.is_active(replica) for replica in replicas):
                raise bad_assignment(
                    "All brokers specified in the manual partition assignment for partition "
                    f"{index} are fenced or in controlled shutdown."
                )
        if sorted(by_index) != list(range(len(by_index))):
            raise bad_assignment("partitions should be a consecutive 0-based integer sequence")
        return [by_index[index] for index in range(len(by_index))]

    def _partition_records(
        self, topic_id: Uuid, first_index: int, assignments: Sequence[Sequence[int]]
    ) -> list[Message]:
        """The records of partitions in a row. assignments: the replicas of each."""
        return [
            new_partition_record(self._image, topic_id, index, replicas)
            for index, replicas in enumerate(assignments, first_index)
        ]


def delete_topics(
    image: MetadataImage,
    request: DeleteTopicsRequest,
    *,
    enabled: bool,
    api_version: int,
    charge: ChargePartitions = free_of_charge,
) -> ControllerResult[DeleteTopicsResponse]:
    """Delete by name (up to v5) or by name or id (v6). Raises KafkaError if delete.topic.enable is
    off.
    """
    if not enabled:
        code = ErrorCode.INVALID_REQUEST if api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        raise KafkaError(code, "Topic deletion is disabled.")
    asked: list[tuple[str | None, Uuid]] = [(name, ZERO_UUID) for name in request.topic_names]
    asked += [(state.name, state.topic_id) for state in request.topics]
    names = Counter(name for name, topic_id in asked if name is not None and topic_id == ZERO_UUID)
    ids = Counter(topic_id for name, topic_id in asked if name is None and topic_id != ZERO_UUID)
    named = {image.topics[name].topic_id for name in names if name in image.topics}
    records: list[Message] = []
    results = []
    answered: set[tuple[str | None, Uuid]] = set()
    for name, topic_id in asked:
        if name is None and topic_id in named:
            continue  # the response to its name is one for both
        code, message = _deletion_problem(image, name, topic_id, names, ids)
        if message.startswith("Duplicate"):
            if (name, topic_id) in answered:
                continue
            answered.add((name, topic_id))
        topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
        if topic is not None and code is ErrorCode.NONE:
            code = _charged(charge, len(topic.partitions))
        result = DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=code, error_message=message or None
        )
        if topic is not None and (not message or message == _MAPS_TO_ID):
            result.name, result.topic_id = topic.name, topic.topic_id
        if topic is not None and code is ErrorCode.NONE:
            records.append(RemoveTopicRecord(topic_id=topic.topic_id))
        results.append(result)
    return ControllerResult(records, DeleteTopicsResponse(responses=results))


def _deletion_problem(
    image: MetadataImage,
    name: str | None,
    topic_id: Uuid,
    names: Mapping[str, int],
    ids: Mapping[Uuid, int],
) -> tuple[ErrorCode, str]:
    """The error that prevents the deletion; (NONE, "") if there is none."""
    if name is None and topic_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."
    if name is not None and topic_id != ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
    if name is not None:
        if names[name] > 1:
            return ErrorCode.INVALID_REQUEST, "Duplicate topic name."
        topic = image.topics.get(name)
        if topic is None:
            return (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        if topic.topic_id in ids:
            return ErrorCode.INVALID_REQUEST, _MAPS_TO_ID
        return ErrorCode.NONE, ""
    if ids[topic_id] > 1:
        return ErrorCode.INVALID_REQUEST, "Duplicate topic id."
    if topic_id not in image.topics_by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."
    return ErrorCode.NONE, ""


def _charged(charge: ChargePartitions, partition_count: int) -> ErrorCode:
    """The error of what is refused because of the quota; NONE otherwise."""
    try:
        charge(partition_count)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _create_error(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=code, error_message=message or None, configs=[]
    )
