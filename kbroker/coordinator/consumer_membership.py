"""What a consumer group answers to ConsumerGroupHeartbeat (KIP-848), and how members end.

Each function looks at a `ConsumerGroup` and gives the records that follow, in Kafka's order, with
the response; it changes nothing. A heartbeat goes through up to five steps, each upon the outcome
of the last: the member, its regular expression, the group's epoch, the target assignment, what the
member has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kbroker.coordinator.assignors import ASSIGNORS, Assignment, Subscriber
from kbroker.coordinator.consumer_group import ConsumerGroup, Topic, topics_of
from kbroker.coordinator.consumer_records import (
    MemberMetadata,
    current_record,
    group_record,
    member_record,
    member_tombstones,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.effects import Effect
from kbroker.coordinator.metadata_hash import PartitionRacks, metadata_hash
from kbroker.coordinator.reconciliation import (
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    Owned,
    reconcile,
)
from kbroker.coordinator.records import CoordinatorRecord
from kbroker.coordinator.topic_patterns import check_pattern, matching
from kbroker.model import Uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.group_records import ConsumerGroupRegularExpressionValue

CLIENT_MEMBER_ID_VERSION: Final = 1
"""From this ConsumerGroupHeartbeat on a member makes its id itself (KIP-1082)."""

Reported = Mapping[Uuid, frozenset[int]] | None
Regexes = Mapping[str, ConsumerGroupRegularExpressionValue]


class ConsumerSettings(Protocol):
    """What of the broker's configuration a consumer group reads."""

    @property
    def group_consumer_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...
    @property
    def group_consumer_assignors(self) -> tuple[str, ...]: ...


class GroupOverrides(Protocol):
    """What groups have set themselves (IncrementalAlterConfigs), within the broker's bounds."""

    def get_int(self, group_id: str, name: str) -> int | None:
        """A whole number by its name, such as consumer.session.timeout.ms; None: nothing set."""
        ...


class _NoOverrides:
    def get_int(self, group_id: str, name: str) -> int | None:
        return None


NO_OVERRIDES: Final = _NoOverrides()
"""The broker's settings hold for every group."""


class ClusterTopics(Protocol):
    """The topics of the cluster; a change gives another `topics`."""

    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def topics_by_id(self) -> Mapping[Uuid, Topic]: ...
    @property
    def offset(self) -> int: ...
    def partition_racks(self, name: str) -> PartitionRacks: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision needs besides group and request. wall_ms: now.

    heartbeat_interval_ms, assignment_interval_ms: of this group.
    """

    settings: ConsumerSettings
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    topics: ClusterTopics
    wall_ms: int
    client_id: str
    client_host: str
    new_member_id: Callable[[], str]


Written = Callable[[int], list[Effect]]
"""What follows, now_ms given, when records are in the log."""


@dataclass(frozen=True, slots=True)
class Decision:
    """records: to be written first. member_id: whose session starts anew. written: what follows
    when the records are in the log. replies: to others who waited, in any case.
    """

    records: list[CoordinatorRecord]
    response: ConsumerGroupHeartbeatResponse
    member_id: str | None = None
    written: Written | None = None
    replies: Sequence[Effect] = ()


class Removal(NamedTuple):
    """The end of members. written: what follows when its records are in the log."""

    records: list[CoordinatorRecord]
    written: Written | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What a member says of itself now. replaced: the id of the static member whose place it takes;
    reported: what it says it has.
    """

    member_id: str
    replaced: str | None
    metadata: MemberMetadata
    reported: Reported


@dataclass(frozen=True, slots=True)
class Step:
    """Where an update brings a member: from `before` to `after`."""

    records: list[CoordinatorRecord]
    before: CurrentAssignment
    after: CurrentAssignment
    epoch: int
    target_epoch: int


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """What is wrong with a request by itself. Raises KafkaError."""
    epoch = request.member_epoch
    problem = None
    if not request.group_id:
        problem = "the group has no id"
    elif request.instance_id == "":
        problem = "the instance id is empty"
    elif request.rack_id == "":
        problem = "the rack is empty"
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = f"there is no member epoch {epoch}"
    elif not request.member_id and (epoch != 0 or version >= CLIENT_MEMBER_ID_VERSION):
        problem = "the member has no id"
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "only a static member leaves for a while"
    elif epoch == 0:
        problem = _problem_of_join(request)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{problem[0].upper()}{problem[1:]}.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        message = f"There is no assignor {request.server_assignor}, only {known}."
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    if request.subscribed_topic_regex:
        check_pattern(request.subscribed_topic_regex)


def _problem_of_join(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "a member that joins names its rebalance timeout"
    if request.topic_partitions is None or request.topic_partitions:
        return "a member that joins says that it has no partitions"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "a member that joins subscribes to topics by name or by a regular expression"
    return None


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    around: Surroundings,
    *,
    unsettled: bool = False,
) -> Decision:
    """A heartbeat of a member that joins or is there. unsettled: the target so far is not one for
    these members. Raises KafkaError.
    """
    member_id = request.member_id or around.new_member_id()
    replaced = _find_member(group, request, member_id, around.settings)
    former = group.members.get(replaced or member_id)
    metadata = _updated(former, request, around)
    update = Update(member_id, replaced, metadata, reported_of(request))
    step = advance(group, update, around, unsettled=unsettled)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=step.after.member_epoch,
        heartbeat_interval_ms=around.heartbeat_interval_ms,
    )
    if _is_full(request) or _partitions(step.after.assigned) != _partitions(step.before.assigned):
        response.assignment = _assignment(step.after.assigned)
    return Decision(step.records, response, member_id)


def advance(
    group: ConsumerGroup,
    update: Update,
    around: Surroundings,
    *,
    assign: bool = True,
    unsettled: bool = False,
) -> Step:
    """The member, its regular expression, the group's epoch, the target assignment, what the member
    has. assign: whether there may be a new target; unsettled: whether there must be.
    """
    group_id, member_id, replaced = group.group_id, update.member_id, update.replaced
    records: list[CoordinatorRecord] = []
    former = group.members.get(replaced or member_id)
    current, target = group.current(member_id), group.targets.get(member_id)
    if replaced is not None:
        current, target = group.current(replaced).returned(), group.targets.get(replaced, {})
        records += member_tombstones(group_id, replaced)
    if replaced is not None or update.metadata != former:
        records.append(member_record(group_id, member_id, update.metadata))
    if replaced is not None and target is not None:
        records.append(target_record(group_id, member_id, target))
        records.append(current_record(group_id, member_id, current))
    members = {key: value for key, value in group.members.items() if key != replaced}
    members[member_id] = update.metadata
    plan = _Plan(group, members, around)
    records += plan.advance(
        changed=unsettled
        or former is None
        or _subscription(former) != _subscription(update.metadata),
        moved=(replaced, member_id, target) if replaced is not None else None,
        assign=assign,
    )
    after = current
    if assign or plan.target_epoch == plan.epoch:
        after = reconcile(
            current,
            target_epoch=plan.target_epoch,
            target=plan.targets.get(member_id, {}),
            is_free=group.is_free_for(replaced or member_id),
            reported=update.reported,
        )
    if after is not current:
        records.append(current_record(group_id, member_id, after))
    return Step(records, current, after, plan.epoch, plan.target_epoch)


def check_leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
    """Whether this member may leave. Raises KafkaError."""
    _check_static(group, request)
    if request.member_id not in group.members:
        raise _unknown_member(group, request.member_id)


def leave_for_a_while(group: ConsumerGroup, member_id: str) -> list[CoordinatorRecord]:
    """A static member goes and will be back."""
    return [current_record(group.group_id, member_id, group.current(member_id).away())]


def removal(
    group: ConsumerGroup, member_ids: Collection[str], topics: ClusterTopics
) -> list[CoordinatorRecord]:
    """The end of members, and the group's next epoch."""
    records: list[CoordinatorRecord] = []
    for member_id in member_ids:
        records += member_tombstones(group.group_id, member_id)
    rest = {key: value for key, value in group.members.items() if key not in member_ids}
    regexes = dict(group.regexes)
    for regex in _unused(regexes, rest):
        records.append(regex_tombstone(group.group_id, regex))
        del regexes[regex]
    names = {name for metadata in rest.values() for name in topics_of(metadata, regexes)}
    new_hash = metadata_hash(names, topics)
    records.append(group_record(group.group_id, group.epoch + 1, new_hash))
    return records


def reported_of(request: ConsumerGroupHeartbeatRequest) -> Reported:
    """What the member says it has; None if it did not say."""
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.topic_partitions}


# -- steps of a heartbeat --------------------------------------------------------------------


def _find_member(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    settings: ConsumerSettings,
) -> str | None:
    """Check who asks. Gives the id of the static member whose place it takes, if it takes one."""
    if request.member_epoch != 0:
        _check_static(group, request)
        if member_id not in group.members:
            raise _unknown_member(group, member_id)
        _check_epoch(group.current(member_id), request)
        return None
    owner = group.static_members.get(request.instance_id or "")
    if owner is not None and owner != member_id:
        if not (group.is_away(owner) or group.is_classic(owner)):
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance {request.instance_id} is member {owner}, which has not left.",
            )
        return owner
    check_room(group, member_id, settings)
    return None


def check_room(group: ConsumerGroup, member_id: str, settings: ConsumerSettings) -> None:
    """Whether the group has a place for that member. Raises KafkaError."""
    if member_id not in group.members and len(group.members) >= settings.group_consumer_max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"Group {group.group_id} has {len(group.members)} members, no more are allowed.",
        )


def _check_static(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
    if request.instance_id is None:
        return
    owner = group.static_members.get(request.instance_id)
    if owner is None:
        message = f"Group {group.group_id} has no instance {request.instance_id}."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
    if owner != request.member_id:
        message = f"Instance {request.instance_id} is member {owner} now."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)


def _check_epoch(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> None:
    """A member may be one epoch behind if it missed the answer: then all it has is assigned to
    it.
    """
    epoch, reported = request.member_epoch, reported_of(request)
    if epoch == current.member_epoch:
        return
    if (
        epoch < current.member_epoch
        and epoch == current.previous_epoch
        and reported is not None
        and current.owns_all(reported)
    ):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"Member epoch {epoch} is not {current.member_epoch}: let go of all partitions and rejoin.",
    )


def _unknown_member(group: ConsumerGroup, member_id: str) -> KafkaError:
    message = f"Group {group.group_id} has no member {member_id}."
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)


def _updated(
    former: MemberMetadata | None, request: ConsumerGroupHeartbeatRequest, around: Surroundings
) -> MemberMetadata:
    """What is known of a member after this request: null fields leave it as it was."""

    old = former or MemberMetadata(
        instance_id=None, rack_id=None, subscribed_topic_regex="", server_assignor=None
    )
    names = request.subscribed_topic_names
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=_chosen(request.instance_id, old.instance_id),
        rack_id=_chosen(request.rack_id, old.rack_id),
        client_id=around.client_id,
        client_host=around.client_host,
        subscribed_topic_names=old.subscribed_topic_names if names is None else sorted(set(names)),
        subscribed_topic_regex=_chosen(request.subscribed_topic_regex, old.subscribed_topic_regex),
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=_chosen(request.server_assignor, old.server_assignor),
        classic_member_metadata=None,
    )


def _chosen(said: str | None, known: str | None) -> str | None:
    return known if said is None else said


def _subscription(metadata: MemberMetadata) -> tuple[object, ...]:
    return (
        metadata.subscribed_topic_names,
        metadata.subscribed_topic_regex,
        metadata.server_assignor,
    )


class _Plan:
    """The group as it will be with these members: regular expressions, epoch and target."""

    def __init__(
        self, group: ConsumerGroup, members: Mapping[str, MemberMetadata], around: Surroundings
    ) -> None:
        self._group = group
        self._members = members
        self._around = around
        self._regexes: dict[str, ConsumerGroupRegularExpressionValue] = dict(group.regexes)
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.targets: dict[str, Assignment] = dict(group.targets)

    def advance(
        self,
        *,
        changed: bool,
        moved: tuple[str, str, Assignment | None] | None,
        assign: bool,
    ) -> list[CoordinatorRecord]:
        """The records of all three steps. changed: a member or its subscription is new. moved:
        (from, to, target) of a static member that came back under another id. assign: False leaves
        the third step out.
        """
        group, topics = self._group, self._around.topics
        if moved is not None:
            self.targets.pop(moved[0], None)
            self.targets[moved[1]] = moved[2] or {}
        records: list[CoordinatorRecord] = []
        if changed or group.seen_topics is not topics.topics:
            records += self._look_up_regexes(changed=changed)
            records += self._next_epoch(changed=changed)
        if assign and self.epoch > self.target_epoch and self._may_assign():
            records += self._assign()
        return records

    def _look_up_regexes(self, *, changed: bool) -> list[CoordinatorRecord]:
        group, around = self._group, self._around
        records = []
        used = {metadata.subscribed_topic_regex for metadata in self._members.values()}
        for regex in sorted(regex for regex in used if regex):
            known = self._regexes.get(regex)
            if known is not None and group.seen_topics is around.topics.topics:
                continue
            names = matching(regex, around.topics.topics)
            if known is None or known.topics != names:
                value = ConsumerGroupRegularExpressionValue(topics=names)
                self._regexes[regex] = value
                offset, wall_ms = around.topics.offset, around.wall_ms
                records.append(regex_record(group.group_id, regex, names, offset, wall_ms))
        for regex in _unused(self._regexes, self._members):
            records.append(regex_tombstone(group.group_id, regex))
            del self._regexes[regex]
        return records

    def _next_epoch(self, *, changed: bool) -> list[CoordinatorRecord]:
        group = self._group
        names = {name for member in self._members.values() for name in self._topics_of(member)}
        new_hash = metadata_hash(names, self._around.topics)
        if not changed and new_hash == group.metadata_hash:
            return []
        self.epoch = group.epoch + 1
        return [group_record(group.group_id, self.epoch, new_hash)]

    def _topics_of(self, metadata: MemberMetadata) -> set[str]:
        return topics_of(metadata, self._regexes)

    def _may_assign(self) -> bool:
        """Assignments are made at most once per interval, so that many who join are one change."""
        since_ms = self._around.wall_ms - self._group.target_timestamp_ms
        return since_ms >= self._around.assignment_interval_ms or since_ms < 0

    def _assign(self) -> list[CoordinatorRecord]:
        group, topics = self._group, self._around.topics.topics
        partition_counts: dict[Uuid, int] = {}
        subscribers: dict[str, Subscriber] = {}
        for member_id, metadata in self._members.items():
            ids = set()
            for name in sorted(self._topics_of(metadata)):
                topic = topics.get(name)
                if topic is not None:
                    ids.add(topic.topic_id)
                    partition_counts[topic.topic_id] = len(topic.partitions)
            subscribers[member_id] = Subscriber(
                name=metadata.instance_id or member_id,
                topics=frozenset(ids),
                current=self.targets.get(member_id, {}),
            )
        name = assignor_name(self._members, self._around.settings)
        assigned = ASSIGNORS[name](subscribers, partition_counts)
        records = [
            target_record(group.group_id, member_id, assignment)
            for member_id, assignment in assigned.items()
            if self.targets.get(member_id) != assignment
        ]
        self.targets = assigned
        self.target_epoch = self.epoch
        wall_ms = self._around.wall_ms
        return [*records, target_epoch_record(group.group_id, self.epoch, wall_ms)]


def assignor_name(members: Mapping[str, MemberMetadata], settings: ConsumerSettings) -> str:
    """The assignor most members ask for, the first configured one if none asks."""
    votes: dict[str, int] = {}
    for metadata in members.values():
        wish = metadata.server_assignor
        if wish is not None and wish in ASSIGNORS:
            votes[wish] = votes.get(wish, 0) + 1
    default = settings.group_consumer_assignors[0]
    return min(votes, key=lambda name: (-votes[name], name)) if votes else default


def _unused(regexes: Regexes, members: Mapping[str, MemberMetadata]) -> list[str]:
    used = {metadata.subscribed_topic_regex for metadata in members.values()}
    return sorted(regex for regex in regexes if regex not in used)


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member said all that it can say, and so wants to hear all."""
    return request.member_epoch == 0 or (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def _partitions(owned: Owned) -> dict[Uuid, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _assignment(owned: Owned) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(
                topic_id=topic_id, partitions=sorted(partitions)
            )
            for topic_id, partitions in owned.items()
        ]
    )
