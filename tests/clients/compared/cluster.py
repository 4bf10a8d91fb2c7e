"""kafka-features.sh, kafka-metadata-quorum.sh, kafka-broker-api-versions.sh and
kafka-client-metrics.sh.
"""

from __future__ import annotations

from typing import Final

from tests.clients.compared.acts import PROPERTIES, client_properties, forget_client_metrics
from tests.clients.compared.row import CONTROLLER, SERVER, Difference, Row, Session


def features(name: str, arguments: str, server: str = SERVER) -> Row:
    """A run of FeatureCommand. The epoch is an offset of the metadata log."""
    return Row(
        name, "FeatureCommand", arguments, server=server, masks=((r"Epoch: \d+", "Epoch: <n>"),)
    )


FEATURES: Final = Session(
    "features",
    (
        features("describe", "describe"),
        features("describe by a controller", "describe", CONTROLLER),
        features("describe a node", "describe --node-id 1"),
        client_properties(1500),
        features("describe an unknown node", f"{PROPERTIES} describe --node-id 9"),
        features("version mapping", "version-mapping"),
        features("version mapping of a release", "version-mapping --release-version 4.0-IV3"),
        features("version mapping of an unknown release", "version-mapping --release-version 9.0"),
        features("dependencies", "feature-dependencies --feature transaction.version=2"),
        features("dependencies of an unknown feature", "feature-dependencies --feature magic.version=2"),
        features("dependencies of an unknown level", "feature-dependencies --feature group.version=9"),
        features("downgrade in a dry run", "downgrade --feature streams.version=0 --dry-run"),
        features("downgrade", "downgrade --feature streams.version=0"),
        features("describe the downgraded", "describe"),
        features("upgrade in a dry run", "upgrade --feature streams.version=1 --dry-run"),
        features("upgrade", "upgrade --feature streams.version=1"),
        features("upgrade to the same", "upgrade --feature streams.version=1"),
        features("upgrade several", "upgrade --feature streams.version=1 --feature group.version=1"),
        features("disable", "disable --feature streams.version"),
        features("disable again", "disable --feature streams.version"),
        features("upgrade by a controller", "upgrade --feature streams.version=1", CONTROLLER),
        features("upgrade to an unknown level", "upgrade --feature group.version=9"),
        features("upgrade an unknown feature", "upgrade --feature magic.version=1"),
        features("upgrade that is a downgrade", "upgrade --feature group.version=0"),
        features("downgrade that is an upgrade", "downgrade --feature group.version=2"),
        features("upgrade the metadata", "upgrade --metadata 4.3-IV0"),
        features("upgrade the metadata beyond", "upgrade --metadata 9.9"),
        features("downgrade the metadata in a dry run", "downgrade --metadata 4.2-IV1 --dry-run"),
        features("downgrade the metadata below", "downgrade --metadata 3.2-IV0"),
        features("downgrade the metadata unsafely", "downgrade --metadata 3.3-IV3 --unsafe"),
        features("disable the metadata", "disable --feature metadata.version"),
        features("upgrade to a release", "upgrade --release-version 4.3-IV0"),
        features("downgrade to a release in a dry run", "downgrade --release-version 4.2-IV1 --dry-run"),
        features("upgrade to an unknown release", "upgrade --release-version 9.9"),
        features("upgrade nothing", "upgrade"),
        features("a malformed feature", "upgrade --feature streams.version"),
        features("describe what it is now", "describe"),
        features("no verb", ""),
        features("help", "--help"),
    ),
)  # fmt: skip

LOG: Final = (
    (r"(LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs): +-?\d+", r"\1: <n>"),
    (r"[ \t]+", " "),
    (r"^1 <id 1> \d+ 0 ", "1 <id 1> <end> 0 "),
    (r"\d+ ms ago", "<n> ms ago"),
    (r" +$", ""),
)
"""Where the metadata log is."""


def quorum(
    name: str, arguments: str, server: str = SERVER, differs: Difference | None = None
) -> Row:
    """A run of MetadataQuorumCommand."""
    tool = "MetadataQuorumCommand"
    return Row(name, tool, arguments, server=server, masks=LOG, differs=differs)


NO_VOTER: Final = "org.apache.kafka.common.errors.VoterNotFoundException: "
KAFKAS_WORDS: Final = (
    f"{NO_VOTER}Cannot remove voter ReplicaKey(id=9, directoryId=<id 1>) from the set of voters "
    "[ReplicaKey(id=1, directoryId=<id 2>)]"
)
OUR_WORDS: Final = f"{NO_VOTER}9:<id 1> is no voter, or the last one."
NOT_REMOVED: Final = Difference(
    "Kafka's message shows Java objects",
    {
        f"{before}{KAFKAS_WORDS}": f"{before}{OUR_WORDS}"
        for before in ("", "java.util.concurrent.ExecutionException: ", "Caused by: ")
    },
)


QUORUM: Final = Session(
    "metadata-quorum",
    (
        quorum("status", "describe --status"),
        quorum("status by a controller", "describe --status", CONTROLLER),
        quorum("replication", "describe --replication"),
        quorum("replication by a controller", "describe --replication", CONTROLLER),
        quorum("replication for people", "describe --replication --human-readable"),
        quorum("status for people", "describe --status --human-readable"),
        quorum("describe nothing", "describe"),
        quorum("remove an unknown controller", "remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAABBg", differs=NOT_REMOVED),
        quorum("remove it in a dry run", "remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAABBg --dry-run"),
        quorum("remove a controller of a malformed directory", "remove-controller --controller-id 9 --controller-directory-id x"),
        quorum("remove a controller without a directory", "remove-controller --controller-id 9"),
        quorum("remove a negative controller", "remove-controller --controller-id -1 --controller-directory-id AAAAAAAAAAAAAAAAAAABBg"),
        quorum("add a controller without its file", "add-controller"),
        quorum("no verb", ""),
        Row("no address", "MetadataQuorumCommand", "describe --status", server=""),
    ),
)  # fmt: skip


def versions(api: str, number: int, low: int, old: int, high: int) -> dict[str, str | None]:
    """An API that kbroker serves from version old on, and Kafka from low on."""
    line = f"\t{api}({number}): {{}} to {high} [usable: {high}],"
    return {line.format(low): line.format(old)}


def unsupported(api: str, number: int, low: int, high: int) -> dict[str, str | None]:
    """An API that kbroker does not serve."""
    line = f"\t{api}({number}): "
    return {f"{line}{low} to {high} [usable: {high}],": f"{line}UNSUPPORTED,"}


VERSIONS: Final = Difference(
    "kbroker also serves the versions of clients from 0.8.2 on, and neither SASL nor delegation "
    "tokens yet",
    {
        **versions("Fetch", 1, 4, 0, 18),
        **versions("ListOffsets", 2, 1, 0, 11),
        **versions("OffsetCommit", 8, 2, 0, 10),
        **versions("OffsetFetch", 9, 1, 0, 10),
        **unsupported("SaslHandshake", 17, 0, 1),
        **versions("CreateTopics", 19, 2, 0, 7),
        **versions("DeleteTopics", 20, 1, 0, 6),
        **versions("OffsetForLeaderEpoch", 23, 2, 0, 4),
        **versions("DescribeAcls", 29, 1, 0, 3),
        **versions("CreateAcls", 30, 1, 0, 3),
        **versions("DeleteAcls", 31, 1, 0, 3),
        **versions("DescribeConfigs", 32, 1, 0, 4),
        **versions("AlterReplicaLogDirs", 34, 1, 0, 2),
        **versions("DescribeLogDirs", 35, 1, 0, 5),
        **unsupported("SaslAuthenticate", 36, 0, 2),
        **unsupported("CreateDelegationToken", 38, 1, 3),
        **unsupported("RenewDelegationToken", 39, 1, 2),
        **unsupported("ExpireDelegationToken", 40, 1, 2),
        **unsupported("DescribeDelegationToken", 41, 1, 3),
    },
)
API_VERSIONS: Final = Session(
    "broker-api-versions",
    (
        Row("versions", "BrokerApiVersionsCommand", "", differs=VERSIONS),
        Row("no address", "BrokerApiVersionsCommand", "", server=""),
        Row("help", "BrokerApiVersionsCommand", "--help", server=""),
    ),
)


def metrics(name: str, arguments: str) -> Row:
    """A run of ClientMetricsCommand."""
    return Row(name, "ClientMetricsCommand", arguments)


CLIENT_METRICS: Final = Session(
    "client-metrics",
    (
        metrics("list nothing", "--list"),
        metrics("describe nothing", "--describe"),
        metrics("alter", "--alter --name cm-a --metrics a.,b. --interval 5000 --match client_id=x,client_software_name=y"),
        metrics("alter some", "--alter --name cm-b --metrics c."),
        metrics("list", "--list"),
        metrics("describe", "--describe --name cm-a"),
        metrics("describe all", "--describe"),
        metrics("describe an unknown one", "--describe --name cm-none"),
        metrics("reset the interval", "--alter --name cm-a --interval ''"),
        metrics("describe again", "--describe --name cm-a"),
        metrics("a small interval", "--alter --name cm-a --interval 5"),
        metrics("an unknown selector", "--alter --name cm-a --match colour=red"),
        metrics("an expression that does not compile", "--alter --name cm-a --match client_id=["),
        metrics("a generated name", "--alter --generate-name --metrics d."),
        Row("list with the generated name", "ClientMetricsCommand", "--list", sort=True),
        metrics("delete", "--delete --name cm-a"),
        metrics("delete it again", "--delete --name cm-a"),
        metrics("delete another one", "--delete --name cm-b"),
        metrics("alter without a name", "--alter --metrics a."),
        metrics("delete without a name", "--delete"),
        metrics("no verb", "--name cm-a"),
        forget_client_metrics(),
    ),
)  # fmt: skip


def cluster(name: str, arguments: str, server: str = SERVER) -> Row:
    """A run of ClusterTool, whose options come behind the verb."""
    return Row(name, "ClusterTool", f"{arguments} {server}", server="")


CLUSTER: Final = Session(
    "cluster",
    (
        cluster("id", "cluster-id"),
        cluster("id by a controller", "cluster-id", CONTROLLER),
        cluster("endpoints", "list-endpoints"),
        cluster("endpoints and fenced brokers", "list-endpoints --include-fenced-brokers"),
        cluster("endpoints by a controller", "list-endpoints", CONTROLLER),
        cluster("unregister an unknown broker", "unregister --id 9"),
    ),
)

SESSIONS: Final = (FEATURES, QUORUM, API_VERSIONS, CLIENT_METRICS, CLUSTER)
