"""`kbroker cluster health`: what an operator should look at, and exit code 1 if there is any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from kbroker.cli.cluster.description import describe_cluster
from kbroker.cli.cluster.log_dirs import described_log_dirs
from kbroker.cli.cluster.quorum import described_quorum
from kbroker.cli.console.output import counted, note, show
from kbroker.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, Json, connect, run

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.protocol.messages.metadata import MetadataResponse
    from kbroker.protocol.messages.quorum import DescribeQuorumResponse

    Topic = MetadataResponse.MetadataResponseTopic
    Quorum = DescribeQuorumResponse.PartitionData

HEALTH_EPILOG = """
Looks for brokers that do not answer, partitions without a leader, with replicas out of sync or
offline, log directories that are offline, and a quorum without a leader or with a voter that does
not fetch from it.
The exit code is 1 if one is found.

\b
Examples:
  kbroker cluster health
  kbroker cluster health --json
"""
MAX_NAMES: Final = 20
"""How many partitions a line names."""
HAS_LEADER: Final = "the quorum has a leader"
VOTERS_FETCH: Final = "every voter of the quorum fetches"
SILENT_VOTER_MS: Final = 10_000
"""A voter fetches every controller.quorum.fetch.timeout.ms (2 s) at least, also when nothing is
new.
"""


class CheckResult(NamedTuple):
    """One check. problems: names of what is not well."""

    check: str
    ok: bool
    problems: Sequence[str]


def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Check brokers, partitions, log directories and the quorum."""
    checks = run(_health(bootstrap))
    show(
        [{**check._asdict(), "problems": _cut(check.problems)} for check in checks],
        CheckResult._fields,
        as_json=as_json,
        wide=("problems",),
    )
    bad = [check for check in checks if not check.ok]
    if bad:
        note(f"kbroker: {counted(len(bad), 'check')} of {len(checks)} failed")
        raise typer.Exit(1)


def _cut(names: Sequence[str]) -> list[str]:
    more = len(names) - MAX_NAMES
    return [*names[:MAX_NAMES], f"and {more:,} more"] if more > 0 else list(names)


async def _health(bootstrap: str) -> list[CheckResult]:
    async with connect(bootstrap) as client:
        topics = (await client.metadata()).topics
        described = await describe_cluster(client)
        fenced = [
            f"{broker.broker_id} is fenced" for broker in described.brokers if broker.is_fenced
        ]
        return [
            await _brokers(client, fenced),
            *partition_checks(topics),
            await _directories(client),
            *await _quorum(client),
        ]


def partition_checks(topics: Iterable[Topic]) -> list[CheckResult]:
    """Checks of the partitions in a Metadata response."""
    leaderless: list[str] = []
    behind: list[str] = []
    offline: list[str] = []
    for topic in sorted(topics, key=lambda topic: topic.name or ""):
        for part in sorted(topic.partitions, key=lambda part: part.partition_index):
            name = f"{topic.name}-{part.partition_index}"
            if part.leader_id < 0:
                leaderless.append(name)
            elif set(part.replica_nodes) - set(part.isr_nodes):
                behind.append(name)
            if part.offline_replicas:
                offline.append(name)
    named = {
        "every partition has a leader": leaderless,
        "every replica is in sync": behind,
        "no replica is offline": offline,
    }
    return [CheckResult(name, not problems, problems) for name, problems in named.items()]


async def _brokers(client: Client, fenced: Sequence[str]) -> CheckResult:
    from kbroker.protocol.errors import KafkaError

    problems = list(fenced)
    for node_id in sorted(client.brokers):
        try:
            await client.node(node_id)
        except KafkaError as error:
            problems.append(f"{node_id}: {error.message}")
    return CheckResult("every broker answers", not problems, problems)


async def _directories(client: Client) -> CheckResult:
    from kbroker.protocol.errors import ErrorCode, KafkaError

    problems = []
    for node_id in sorted(client.brokers):
        try:
            found = await described_log_dirs(client, node_id, None)
        except KafkaError:
            continue  # of a broker that does not answer, which is said already
        problems += [
            f"{node_id}: {each.log_dir or 'a directory'}: {ErrorCode(each.error_code).name}"
            for each in found
            if each.error_code
        ]
    return CheckResult("every log directory is online", not problems, problems)


async def _quorum(client: Client) -> list[CheckResult]:
    from kbroker.protocol.errors import ErrorCode, KafkaError

    try:
        return quorum_checks(await described_quorum(client))
    except KafkaError as error:
        is_unknown = error.code is ErrorCode.UNSUPPORTED_VERSION
        problem = "this cluster does not tell" if is_unknown else error.message
        return [CheckResult(HAS_LEADER, is_unknown, [problem])]


def quorum_checks(found: Quorum) -> list[CheckResult]:
    """Checks of what the leader of the metadata quorum knows of its voters. The timestamps of all
    voters, the leader included, are of the leader's clock.
    """
    checks = [
        CheckResult(HAS_LEADER, found.leader_id >= 0, [] if found.leader_id >= 0 else ["no leader"])
    ]
    if found.leader_id < 0:
        return checks
    now_ms = max(voter.last_fetch_timestamp for voter in found.current_voters)
    silent = []
    for voter in sorted(found.current_voters, key=lambda voter: voter.replica_id):
        ago_ms = now_ms - voter.last_fetch_timestamp
        if voter.log_end_offset < 0:
            silent.append(f"{voter.replica_id} has not fetched from leader {found.leader_id}")
        elif voter.replica_id != found.leader_id and ago_ms > SILENT_VOTER_MS:
            silent.append(f"{voter.replica_id} last fetched {ago_ms // 1000} s ago")
    return [*checks, CheckResult(VOTERS_FETCH, not silent, silent)]
