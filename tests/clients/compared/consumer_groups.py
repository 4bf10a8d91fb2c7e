"""kafka-consumer-groups.sh."""

from __future__ import annotations

from typing import Final

from tests.clients.compared.acts import (
    PROPERTIES,
    client_properties,
    commit,
    file,
    leave,
    member,
    produce,
    remove_static,
)
from tests.clients.compared.row import Act, Row, Session

HASHED: Final = (
    (r"(Valid states are: ).*", r"\1<states>"),
    (r"(takes one of these options: |takes the following options: ).*", r"\1<options>"),
    (r"(one of the following scenarios: ).*", r"\1<scenarios>"),
)
"""What the tool prints in the order of a set of its own."""


def groups(name: str, arguments: str) -> Row:
    """A run of ConsumerGroupCommand."""
    return Row(name, "ConsumerGroupCommand", arguments, masks=HASHED)


def topic(name: str, partitions: int = 2) -> Row:
    """Make a topic. Its records are of 2023, and are kept."""
    return Row(
        f"create {name}",
        "TopicCommand",
        f"--create --topic {name} --partitions {partitions} --config retention.ms=-1",
    )


def no_topic(name: str) -> Row:
    """Delete a topic."""
    return Row(f"delete {name}", "TopicCommand", f"--delete --topic {name}")


EMPTY: Final = Session(
    "consumer-groups-empty",
    (
        groups("list nothing", "--list"),
        groups("list nothing with states", "--list --state"),
        topic("cg-a"),
        topic("cg-b", 1),
        produce("cg-a", 10),
        produce("cg-a", 5, partition=1),
        produce("cg-b", 4),
        commit("cg-e", "cg-a", {0: 3, 1: 5}),
        commit("cg-e", "cg-b", {0: 0}),
        commit("cg-f", "cg-b", {0: 2}),
        groups("list", "--list"),
        groups("list with states", "--list --state"),
        groups("list with types", "--list --type"),
        groups("list a state", "--list --state empty"),
        groups("list a type", "--list --type classic"),
        groups("list another state", "--list --state stable"),
        groups("list an unknown state", "--list --state asleep"),
        groups("list an unknown type", "--list --type share"),
        groups("describe", "--describe --group cg-e"),
        groups("describe offsets", "--describe --group cg-e --offsets --verbose"),
        groups("describe members", "--describe --group cg-e --members"),
        groups("describe the state", "--describe --group cg-e --state"),
        groups("describe the state in detail", "--describe --group cg-e --state --verbose"),
        groups("describe several", "--describe --group cg-e --group cg-f"),
        groups("describe all", "--describe --all-groups"),
        groups("describe all states", "--describe --all-groups --state"),
        groups("describe all members", "--describe --all-groups --members"),
        groups("describe an unknown group", "--describe --group cg-none"),
        groups("describe members of an unknown group", "--describe --group cg-none --members"),
        groups("describe the state of an unknown group", "--describe --group cg-none --state"),
        groups("delete offsets", "--delete-offsets --group cg-e --topic cg-b"),
        groups("delete offsets of a partition", "--delete-offsets --group cg-e --topic cg-a:1"),
        groups("delete offsets that are not there", "--delete-offsets --group cg-e --topic cg-a:1"),
        groups("delete offsets of an unknown topic", "--delete-offsets --group cg-e --topic cg-none"),
        groups("delete offsets of an unknown partition", "--delete-offsets --group cg-e --topic cg-a:7"),
        groups("delete offsets of an unknown group", "--delete-offsets --group cg-none --topic cg-a"),
        groups("describe what is left", "--describe --group cg-e"),
        groups("describe with a time limit", "--describe --group cg-e --timeout 20000"),
        client_properties(),
        groups("list with properties of the client", f"--list {PROPERTIES}"),
        groups("delete an unknown group", "--delete --group cg-none"),
        groups("delete one of two", "--delete --group cg-none --group cg-f"),
        groups("delete all", "--delete --all-groups"),
        groups("list what is left", "--list"),
        no_topic("cg-a"),
        no_topic("cg-b"),
    ),
)  # fmt: skip


def reset(name: str, how: str, scope: str = "--topic cr-a", end: str = "--execute") -> Row:
    """Reset the offsets of the group cr-g."""
    return groups(name, f"--reset-offsets --group cr-g {scope} {how} {end}")


RESET: Final = Session(
    "consumer-groups-reset",
    (
        topic("cr-a"),
        topic("cr-b", 1),
        produce("cr-a", 10),
        produce("cr-a", 5, partition=1),
        produce("cr-b", 4),
        commit("cr-g", "cr-a", {0: 3, 1: 5}),
        reset("earliest", "--to-earliest"),
        reset("latest", "--to-latest"),
        reset("latest of a partition", "--to-latest", "--topic cr-a:0"),
        reset("an offset", "--to-offset 4"),
        reset("an offset over the end", "--to-offset 400"),
        reset("an offset below the start", "--to-offset -4"),
        reset("a shift", "--shift-by -1"),
        reset("a shift over the end", "--shift-by 100"),
        reset("a shift below the start", "--shift-by -100"),
        reset("a date", "--to-datetime 2023-11-14T22:13:20.035"),
        reset("a date after the end", "--to-datetime 2030-01-01T00:00:00.000"),
        reset("a malformed date", "--to-datetime yesterday"),
        reset("a duration", "--by-duration P1D"),
        reset("a malformed duration", "--by-duration soon"),
        reset("the current offset", "--to-current"),
        reset("the current offset where there is none", "--to-current", "--topic cr-b"),
        reset("a dry run", "--to-earliest", end="--dry-run"),
        reset("no decision", "--to-earliest", end=""),
        reset("an export", "--to-offset 2", end="--dry-run --export"),
        reset("all topics", "--to-earliest", "--all-topics"),
        reset("two topics", "--to-latest", "--topic cr-a:0 --topic cr-b"),
        reset("an unknown topic", "--to-earliest", "--topic cr-none"),
        reset("an unknown partition", "--to-earliest", "--topic cr-a:7"),
        reset("a malformed partition", "--to-earliest", "--topic cr-a:x"),
        file("offsets.csv", "cr-a,0,6\ncr-b,0,1\n"),
        reset("from a file", "--from-file {folder}/offsets.csv", ""),
        file("wrong.csv", "cr-a,zero,6\n"),
        reset("from a malformed file", "--from-file {folder}/wrong.csv", ""),
        file("two.csv", "cr-g,cr-a,0,1\ncr-h,cr-a,1,2\n"),
        groups("two groups from a file", "--reset-offsets --group cr-g --group cr-h --from-file {folder}/two.csv --execute"),
        groups("a new group", "--reset-offsets --group cr-n --topic cr-a --to-offset 1 --execute"),
        groups("all groups", "--reset-offsets --all-groups --all-topics --to-earliest --execute"),
        groups("describe", "--describe --all-groups"),
        reset("no scope", "--to-earliest", ""),
        reset("no target", ""),
        reset("two targets", "--to-earliest --to-latest"),
        groups("delete", "--delete --all-groups"),
        no_topic("cr-a"),
        no_topic("cr-b"),
    ),
)  # fmt: skip


def active(kind: str, join: Act, *more: Row) -> Session:
    """Verbs on a group that has a member."""
    name = f"ca-{kind}"
    return Session(
        f"consumer-groups-{kind}",
        (
            topic(f"{name}-t"),
            topic(f"{name}-u", 1),
            produce(f"{name}-t", 6),
            join,
            groups("list", "--list --state"),
            groups("list types", "--list --type --state stable"),
            groups("describe", f"--describe --group {name}"),
            groups("describe offsets", f"--describe --group {name} --offsets --verbose"),
            groups("describe members", f"--describe --group {name} --members"),
            groups("describe members in detail", f"--describe --group {name} --members --verbose"),
            groups("describe the state", f"--describe --group {name} --state"),
            groups("describe the state in detail", f"--describe --group {name} --state --verbose"),
            groups("delete", f"--delete --group {name}"),
            groups("delete offsets", f"--delete-offsets --group {name} --topic {name}-t"),
            groups("delete offsets of another topic", f"--delete-offsets --group {name} --topic {name}-u"),
            groups("reset", f"--reset-offsets --group {name} --topic {name}-t --to-earliest --execute"),
            groups("reset all groups", "--reset-offsets --all-groups --all-topics --to-earliest --execute"),
            *more,
            leave(),
            groups("describe when it has left", f"--describe --group {name}"),
            groups("describe the state when it has left", f"--describe --group {name} --state --verbose"),
            groups("delete when it has left", f"--delete --group {name}"),
            no_topic(f"{name}-t"),
            no_topic(f"{name}-u"),
        ),
    )  # fmt: skip


CLASSIC: Final = active("classic", member("ca-classic", ["ca-classic-t"], 6))
CONSUMER: Final = active(
    "consumer", member("ca-consumer", ["ca-consumer-t"], 6, group_protocol="consumer")
)
STATIC: Final = Session(
    "consumer-groups-static",
    (
        topic("cs-t"),
        produce("cs-t", 2),
        member("cs-g", ["cs-t"], 2, group_instance_id="the-instance"),
        groups("describe members", "--describe --group cs-g --members --verbose"),
        leave(),
        groups("describe members when it has left", "--describe --group cs-g --members"),
        groups("delete while its session lasts", "--delete --group cs-g"),
        remove_static("cs-g", "the-instance"),
        groups("delete", "--delete --group cs-g"),
        no_topic("cs-t"),
    ),
)

USAGE: Final = Session(
    "consumer-groups-usage",
    (
        Row("help", "ConsumerGroupCommand", "--help", server=""),
        groups("no verb", "--group g"),
        groups("describe without a group", "--describe"),
        groups("describe both", "--describe --group g --members --state"),
        groups("delete without a group", "--delete"),
        groups("delete offsets without a topic", "--delete-offsets --group g"),
        Row("a regular expression", "ConsumerGroupCommand", "--validate-regex 'a.*'", server=""),
        Row("a wrong regular expression", "ConsumerGroupCommand", "--validate-regex 'a('", server=""),
    ),
)  # fmt: skip

SESSIONS: Final = (EMPTY, RESET, CLASSIC, CONSUMER, STATIC, USAGE)
