"""kafka-groups.sh, and kafka-streams-application-reset.sh."""

from __future__ import annotations

from typing import Final

from kbroker.protocol.messages.coordinators.groups import JoinGroupRequest, LeaveGroupRequest
from kbroker.protocol.messages.coordinators.share_groups import ShareGroupHeartbeatRequest
from tests.clients.adapters import wait_until
from tests.clients.compared.acts import (
    WAIT_S,
    ask,
    commit,
    file,
    find_coordinator,
    leave,
    member,
    produce,
)
from tests.clients.compared.partitions import create, delete
from tests.clients.compared.row import Act, Row, Session, World


def share_group(group: str, topic: str) -> Act:
    """A share group that a member has left."""

    def run(world: World) -> None:
        find_coordinator(world, group)

        def beat(epoch: int) -> bool:
            request = ShareGroupHeartbeatRequest(
                group_id=group,
                member_id="AAAAAAAAAAAAAAAAAAAAAQ",
                member_epoch=epoch,
                subscribed_topic_names=[topic],
            )
            return bool(ask(world, request, 1).error_code == 0)

        wait_until(lambda: beat(0), WAIT_S, "a member of a share group")
        assert beat(-1)

    return Act(run)


def other_group(group: str, protocol_type: str) -> Act:
    """A classic group that is not of consumers, and that its member has left."""

    def run(world: World) -> None:
        find_coordinator(world, group)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="p", metadata=b"")
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type=protocol_type,
            protocols=[protocol],
        )
        joined = ask(world, join, 3)
        assert joined.error_code == 0
        answer = ask(world, LeaveGroupRequest(group_id=group, member_id=joined.member_id), 2)
        assert answer.error_code == 0

    return Act(run)


def groups(name: str, arguments: str) -> Row:
    """A run of GroupsCommand."""
    return Row(name, "GroupsCommand", arguments)


LIST: Final = Session(
    "groups",
    (
        create("gr-t", 1),
        produce("gr-t", 3),
        commit("gr-simple", "gr-t", {0: 1}),
        other_group("gr-connect", "connect"),
        share_group("gr-share", "gr-t"),
        member("gr-consumer", ["gr-t"], 3, group_protocol="consumer"),
        groups("list", "--list"),
        groups("list consumer groups", "--list --consumer"),
        groups("list share groups", "--list --share"),
        groups("list streams groups", "--list --streams"),
        groups("list a type", "--list --group-type classic"),
        groups("list a protocol", "--list --protocol connect"),
        groups("list a type and a protocol", "--list --group-type classic --protocol consumer"),
        groups("list an unknown type", "--list --group-type herd"),
        groups("list two kinds", "--list --share --consumer"),
        groups("no verb", "--share"),
        Row("help", "GroupsCommand", "--help", server=""),
        leave(),
        Row("delete", "ConsumerGroupCommand", "--delete --group gr-consumer --group gr-simple"),
        Row("delete a share group", "ShareGroupCommand", "--delete --group gr-share"),
        Row("delete a share group as a consumer group", "ConsumerGroupCommand", "--delete --group gr-connect"),
        groups("list what is left", "--list"),
        delete("gr-t"),
    ),
)  # fmt: skip


ASSIGNED: Final = ((r"(topicPartitions=)[^)]*", r"\1<partitions>"),)
"""The tool prints a set."""


def reset(name: str, arguments: str, app: str = "sr-app") -> Row:
    """A run of StreamsResetter."""
    arguments = f"--application-id {app} {arguments}".rstrip()
    return Row(name, "StreamsResetter", arguments, masks=ASSIGNED)


INPUT: Final = "--input-topics sr-in"
RESETTER: Final = Session(
    "streams-resetter",
    (
        create("sr-in", 2),
        create("sr-app-store-changelog", 1),
        create("sr-app-key-repartition", 1),
        produce("sr-in", 8),
        produce("sr-in", 4, partition=1),
        commit("sr-app", "sr-in", {0: 5, 1: 2}),
        reset("a dry run", f"{INPUT} --dry-run"),
        reset("earliest", f"{INPUT} --internal-topics sr-app-key-repartition"),
        Row("the group at the start", "ConsumerGroupCommand", "--describe --group sr-app"),
        reset("latest", f"{INPUT} --to-latest --dry-run"),
        reset("an offset", f"{INPUT} --to-offset 3"),
        reset("an offset over the end", f"{INPUT} --to-offset 300"),
        reset("a shift", f"{INPUT} --shift-by 1"),
        reset("a shift below the start", f"{INPUT} --shift-by -100"),
        reset("a date", f"{INPUT} --to-datetime 2023-11-14T22:13:20.035"),
        reset("a duration", f"{INPUT} --by-duration P1D"),
        file("plan.csv", "sr-in,0,2\nsr-in,1,1\n"),
        reset("a file", f"{INPUT} --from-file {{folder}}/plan.csv"),
        file("wrong.csv", "sr-in;0;2\n"),
        reset("a malformed file", f"{INPUT} --from-file {{folder}}/wrong.csv"),
        Row("the group", "ConsumerGroupCommand", "--describe --group sr-app"),
        reset("an unknown topic", "--input-topics sr-none"),
        reset("an unknown internal topic", "--internal-topics sr-in"),
        reset("no topics", ""),
        reset("an unknown application", f"{INPUT} --dry-run", "sr-new"),
        reset("a malformed date", f"{INPUT} --to-datetime noon"),
        member("sr-live", ["sr-in"], 12, client_id="sr-client"),
        reset("an active application", INPUT, "sr-live"),
        reset("an active application by force", f"{INPUT} --force", "sr-live"),
        leave(),
        Row("delete the groups", "ConsumerGroupCommand", "--delete --group sr-app --group sr-live"),
        Row("internal topics are gone", "TopicCommand", "--list --exclude-internal"),
        delete("sr-in"),
    ),
)

SESSIONS: Final = (LIST, RESETTER)
