"""The cluster in memory with consumer groups: what they have committed, and their members."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kbroker.protocol.messages.coordinators.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kbroker.protocol.messages.coordinators.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.coordinators.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kbroker.protocol.messages.coordinators.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from spark_jobs.checkpoint import Offsets
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster


class GroupCluster(ScriptedCluster):
    """offsets: committed ones by group. members: client ids by group; kinds: type of a group that
    has one, classic by default.
    """

    def __init__(self, **topics: int) -> None:
        super().__init__(**topics)
        self.offsets: dict[str, Offsets] = {}
        self.members: dict[str, list[str]] = {}
        self.kinds: dict[str, str] = {}

    def set_ends(self, topic: str, *ends: int) -> None:
        for partition, end in enumerate(ends):
            self.log(topic, partition).end = end

    def set_starts(self, topic: str, *starts: int) -> None:
        for partition, start in enumerate(starts):
            self.log(topic, partition).start = start

    def _respond(self, request: Request, code: ErrorCode) -> Response:
        match request:
            case OffsetFetchRequest():
                return self._fetch_offsets(request, code)
            case OffsetCommitRequest():
                return self._commit(request, code)
            case DescribeGroupsRequest():
                return self._describe_classic(request, code)
            case ConsumerGroupDescribeRequest():
                (group,) = request.group_ids
                found, members = self._described(group, "consumer")
                return ConsumerGroupDescribeResponse(
                    groups=[
                        ConsumerGroupDescribeResponse.DescribedGroup(
                            error_code=found,
                            members=[
                                ConsumerGroupDescribeResponse.Member(client_id=n, client_host="/h")
                                for n in members
                            ],
                        )
                    ]
                )
            case StreamsGroupDescribeRequest():
                found, _ = self._described(request.group_ids[0], "streams")
                return StreamsGroupDescribeResponse(
                    groups=[StreamsGroupDescribeResponse.DescribedGroup(error_code=found)]
                )
            case ShareGroupDescribeRequest():
                found, _ = self._described(request.group_ids[0], "share")
                return ShareGroupDescribeResponse(
                    groups=[ShareGroupDescribeResponse.DescribedGroup(error_code=found)]
                )
        return super()._respond(request, code)

    def _described(self, group: str, kind: str) -> tuple[ErrorCode, list[str]]:
        if self.kinds.get(group) != kind:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        return ErrorCode.NONE, self.members.get(group, [])

    def _describe_classic(
        self, request: DescribeGroupsRequest, code: ErrorCode
    ) -> DescribeGroupsResponse:
        (group,) = request.groups
        is_classic = self.kinds.get(group, "classic") == "classic"
        known = is_classic and (group in self.offsets or group in self.members)
        members = [
            DescribeGroupsResponse.DescribedGroupMember(client_id=name, client_host="/host")
            for name in self.members.get(group, [])
            if is_classic
        ]
        described = DescribeGroupsResponse.DescribedGroup(
            error_code=code, group_id=group, group_state="Empty" if known else "Dead"
        )
        if members:
            described.group_state, described.members = "Stable", members
        return DescribeGroupsResponse(groups=[described])

    def _fetch_offsets(self, request: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
        known = self.offsets.get(request.group_id, {})
        wanted = {topic: list(offsets) for topic, offsets in known.items()}
        if request.topics is not None:
            wanted = {topic.name: topic.partition_indexes for topic in request.topics}
        return OffsetFetchResponse(
            error_code=code,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopic(
                    name=topic,
                    partitions=[
                        OffsetFetchResponse.OffsetFetchResponsePartition(
                            partition_index=partition,
                            committed_offset=known.get(topic, {}).get(partition, -1),
                            metadata="",
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in wanted.items()
            ],
        )

    def _commit(self, request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
        group = request.group_id
        if self.members.get(group) and request.generation_id_or_member_epoch < 0:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                if not code:
                    offsets = self.offsets.setdefault(group, {}).setdefault(topic.name, {})
                    offsets[part.partition_index] = part.committed_offset
            topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponse.OffsetCommitResponsePartition(
                            partition_index=part.partition_index, error_code=code
                        )
                        for part in topic.partitions
                    ],
                )
            )
        return OffsetCommitResponse(topics=topics)
