"""The modules of kbroker that have no test file of their own name, and why.

A module kbroker/<room>/<name>.py has tests/<room>/test_<name>.py. A module without one is named
here. The gate is `test_every_module_has_its_test` in tests/test_project.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reason(NamedTuple):
    """Why a module needs no test file of its own."""

    covered_by: str
    """A test file, relative to tests/, that fails when the module's rule is broken."""
    why: str


REASONS: Mapping[str, Reason] = {
    "coordinator/share_state/topic.py": Reason(
        "server/handlers/groups/test_find_coordinator.py", "the keys of requests, and a name"
    ),
    "coordinator/transaction/producer.py": Reason(
        "coordinator/transaction/test_ends.py", "a pair of numbers"
    ),
    "log/cleaner/cleaning.py": Reason(
        "log/cleaner/test_cleaner_steps.py",
        "whatever ends a round, between any two of its steps",
    ),
    "log/cleaner/steps.py": Reason("log/cleaner/test_round.py", "values of a round"),
    "server/policies/*.py": Reason(
        "server/test_api_policy.py", "each policy against the schemas of Kafka"
    ),
    "client/cluster_view.py": Reason(
        "client/test_cluster.py",
        "plain values that the client makes of responses",
    ),
    "broker/altered_configs.py": Reason(
        "broker/remote/test_remote_controller_channel.py",
        "what a broker sends for an alteration, and what it makes of the response",
    ),
    "testing/ports.py": Reason(
        "testing/test_embedded_cluster.py", "the ports of the nodes of every cluster of the tests"
    ),
    "cli/snapshots/*.py": Reason(
        "cli/snapshots/test_commands.py",
        "what the commands do, seen through the commands and a running broker",
    ),
    "controller/policies.py": Reason(
        "node/test_policies.py",
        "values and ports: the operator's classes are imported and asked there",
    ),
    "server/handlers/configs/broker_settings.py": Reason(
        "node/broker/test_dynamic_config.py",
        "each refusal, through the wire",
    ),
    "server/handlers/configs/telemetry.py": Reason(
        "node/broker/test_telemetry.py",
        "through the wire: it only translates",
    ),
    "quorum/raft/effects.py": Reason(
        "quorum/raft/test_node.py",
        "values only: the core that makes them is tested",
    ),
    "quorum/raft/election_state.py": Reason(
        "quorum/raft/states/test_quorum_state.py",
        "values only: what a start makes of them is tested",
    ),
    "quorum/raft/raft_config.py": Reason(
        "quorum/raft/test_node.py",
        "values only",
    ),
    "replication/followers/followed_partition.py": Reason(
        "replication/followers/test_follower.py",
        "values of that core: each line of Kafka's decisions",
    ),
    "client/node_api_versions.py": Reason(
        "client/channel/test_channel.py",
        "versions agreed on: older peers, none in common, errors",
    ),
    "client/channel/node_connection.py": Reason(
        "client/channel/test_channel.py",
        "one connection of the channel: each of its transitions, on sockets and simulated",
    ),
    "client/channel/streams.py": Reason(
        "client/channel/test_channel.py",
        "a port; both implementations run the same tests",
    ),
    "node/broker/controller_connection.py": Reason(
        "node/test_controller_quorum.py",
        "wiring: three controllers register with the active one over it",
    ),
    "cli/groups/descriptions.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: offsets, lag and members; also of share and streams groups",
    ),
    "cli/groups/listing.py": Reason(
        "cli/groups/test_lag.py",
        "a request to each broker, whose rows the commands print",
    ),
    "cli/groups/members.py": Reason(
        "cli/groups/test_lag.py",
        "a command over the wire, with a member that reads",
    ),
    "cli/groups/offsets.py": Reason(
        "cli/test_commands.py",
        "committed offsets over the wire: exported, reset and deleted",
    ),
    "cli/groups/views.py": Reason(
        "cli/test_streams_groups.py",
        "members of every type of group; share groups in test_share_groups",
    ),
    "cli/cluster/description.py": Reason(
        "cli/cluster/test_commands.py",
        "a command over the wire: the cluster and its brokers",
    ),
    "cli/cluster/health.py": Reason(
        "cli/cluster/test_commands.py",
        "a healthy cluster over the wire, and descriptions of others",
    ),
    "cli/cluster/versions.py": Reason(
        "cli/cluster/test_commands.py",
        "a command over the wire: versions and features",
    ),
    "cli/cluster/log_dirs.py": Reason(
        "cli/cluster/test_commands.py",
        "a command over the wire: directories and replicas",
    ),
    "cli/cluster/quorum.py": Reason(
        "cli/cluster/test_commands.py",
        "a command over the wire: the voter of a single node",
    ),
    "cli/configs/resources.py": Reason(
        "cli/configs/test_commands.py",
        "requests over the wire: every kind of resource, what is set and what is refused",
    ),
    "cli/records/query.py": Reason(
        "cli/records/test_search.py",
        "each option over the wire, alone and together, and the limits of a search",
    ),
    "cli/records/resending.py": Reason(
        "cli/records/test_resend.py",
        "plans and copies over the wire: partitions, transactions, failures",
    ),
    "cli/records/source.py": Reason(
        "cli/records/test_consume.py",
        "ranges, partitions and patterns over the wire",
    ),
    "cli/serve_command.py": Reason(
        "cli/test_app.py",
        "options only, as serve reads them without typer",
    ),
    "cli/topics/descriptions.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: partitions and settings",
    ),
    "cli/groups/share.py": Reason(
        "cli/test_share_groups.py",
        "share groups are shown, reset and deleted over the wire",
    ),
    "cli/transactions/commands.py": Reason(
        "cli/test_transactions.py",
        "compared with the output of Apache Kafka's tool",
    ),
    "cli/topics/commands.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: each sub-command and its mistakes",
    ),
    "cli/groups/commands.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: each sub-command and its mistakes",
    ),
    "cli/groups/resets.py": Reason(
        "cli/test_commands.py",
        "each way to reset offsets, over the wire",
    ),
    "cli/transactions/hanging.py": Reason(
        "cli/test_transactions.py",
        "compared with the output of Apache Kafka's tool",
    ),
    "cli/record_decoders.py": Reason(
        "log/tools/test_dump.py",
        "compared with what Apache Kafka's decoders print of the same files",
    ),
    "cli/format.py": Reason(
        "cli/test_app.py",
        "options only: the directories are quorum/formatting/test_format.py's",
    ),
    "cli/serve.py": Reason(
        "cli/test_app.py",
        "options only, read with and without the command-line library",
    ),
    "server/handlers/configs/alter_configs.py": Reason(
        "clients/test_config_command.py",
        "a translation: Apache Kafka's tool alters topics and groups",
    ),
    "server/handlers/groups/consumer_groups.py": Reason(
        "clients/test_consumer_protocol.py",
        "a translation: clients of the consumer protocol",
    ),
    "server/handlers/groups/delete_groups.py": Reason(
        "cli/test_commands.py",
        "a translation: groups and offsets are deleted over the wire",
    ),
    "server/handlers/configs/features.py": Reason(
        "e2e/test_transaction_versions.py",
        "a translation: levels are raised over the wire",
    ),
    "server/handlers/topics/log_dirs.py": Reason(
        "e2e/test_log_directories.py",
        "a translation: replicas are moved and described over the wire",
    ),
    "server/handlers/groups/share_fetch.py": Reason(
        "e2e/test_share_fetch.py",
        "a translation: sessions and acknowledgements over the wire",
    ),
    "server/handlers/groups/share_groups.py": Reason(
        "cli/test_share_groups.py",
        "a translation: groups are shown, reset and deleted over the wire",
    ),
    "server/handlers/groups/streams_groups.py": Reason(
        "cli/test_streams_groups.py",
        "a translation: heartbeats and descriptions over the wire",
    ),
    "server/handlers/transactions/transactions.py": Reason(
        "clients/test_transactions.py",
        "a translation: transactional producers of three clients",
    ),
    "server/monitoring/*_metrics.py": Reason(
        "server/monitoring/test_collection.py",
        "families are read from scrapes of a broker that was used",
    ),
    "server/monitoring/sources.py": Reason(
        "server/monitoring/test_collection.py",
        "values: every scrape reads them",
    ),
    "replication/role.py": Reason(
        "replication/test_partition.py",
        "two names: their transitions are those of the partition",
    ),
    "server/network/connection_shared.py": Reason(
        "server/network/test_connection.py",
        "the parts that each of these connections is given",
    ),
    "server/services.py": Reason(
        "server/test_dispatch.py",
        "names of parts, without a rule",
    ),
    "server/session.py": Reason(
        "server/test_dispatch.py",
        "a value without a rule",
    ),
    "__main__.py": Reason(
        "cli/test_app.py", "the process itself: closed streams, ctrl-C and exit codes of a command"
    ),
    "protocol/codecs/codec_encode.py": Reason(
        "protocol/codecs/test_codec.py", "one half of the codec, which is tested in both directions"
    ),
    "protocol/codecs/codec_decode.py": Reason(
        "protocol/codecs/test_codec.py", "one half of the codec, which is tested in both directions"
    ),
    "protocol/share_partition_state.py": Reason(
        "coordinator/share_state/test_persister.py", "values without a rule"
    ),
    "replication/reads/partition_read.py": Reason(
        "replication/reads/test_fetch.py",
        "the read of one partition: offsets, epochs, isolation, followers, through a whole fetch",
    ),
    "settings/tables/group_table.py": Reason(
        "settings/tables/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/tables/group_coordinator_table.py": Reason(
        "settings/tables/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/tables/log_table.py": Reason(
        "settings/tables/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/tables/security_table.py": Reason(
        "settings/tables/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/tables/topic_table.py": Reason(
        "settings/tables/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/tables/served.py": Reason(
        "settings/tables/test_table.py",
        "names only: each exists in the table and is read by a module",
    ),
    "testing/process.py": Reason(
        "e2e/test_kill.py", "a broker process: started, killed, paused and started again"
    ),
    "simulation/process.py": Reason(
        "simulation/test_event_loop.py",
        "a value: what the loop does with the callbacks of a process is tested there",
    ),
    "simulation/producers.py": Reason(
        "simulation/test_run.py",
        "clients: every seed has their records and transactions judged",
    ),
    "simulation/consumers.py": Reason(
        "simulation/test_run.py",
        "clients: every seed has what they read and commit judged",
    ),
    "log/cleaner/compaction.py": Reason(
        "log/cleaner/test_cleaner.py",
        "the rules of which records remain, each shown on a log that is cleaned",
    ),
    "log/storage/index_entries.py": Reason(
        "log/storage/test_transaction_index.py", "values without a rule"
    ),
    "log/directories/opening.py": Reason(
        "log/test_manager.py",
        "one start: strays, damaged logs, doubles and futures, each shown by a manager that starts",
    ),
    "log/results.py": Reason(
        "log/test_partition_log.py", "values without a rule, read by every test of a log"
    ),
    "log/tools/findings.py": Reason("log/tools/test_verify.py", "three values without a rule"),
    "log/tools/verify_partition.py": Reason(
        "log/tools/test_verify.py",
        "a table of damage to a partition's folder, each file named",
    ),
    "controller/result.py": Reason(
        "controller/test_service.py",
        "a value of three fields: the service appends its records and gives its response",
    ),
    "metadata/features.py": Reason(
        "server/handlers/cluster/test_api_versions.py",
        "a table of what is supported: compared with the features that Apache Kafka announces",
    ),
    "coordinator/group/classic/generation.py": Reason(
        "coordinator/group/classic/test_group.py",
        "the members and state that a rebalance works on: tested together with it",
    ),
    "coordinator/group/classic/rebalance.py": Reason(
        "coordinator/group/classic/test_group.py",
        "every step of a rebalance is a test there, and by seed in test_simulation",
    ),
    "coordinator/group/classic/groups.py": Reason(
        "coordinator/group/classic/test_group.py",
        "the kind of classic groups: its requests are those of the test",
    ),
    "coordinator/group/consumer/classic_clients.py": Reason(
        "coordinator/group/test_migration.py",
        "classic members of consumer groups, request by request",
    ),
    "coordinator/group/consumer/classic_members.py": Reason(
        "coordinator/group/test_migration.py",
        "classic members of consumer groups, request by request",
    ),
    "coordinator/group/consumer/context.py": Reason(
        "coordinator/group/membership/test_context.py",
        "a value: its only rule is that of the base class",
    ),
    "coordinator/group/consumer/description.py": Reason(
        "reference/test_same_answers.py", "a translation into the response"
    ),
    "coordinator/group/consumer/group.py": Reason(
        "coordinator/group/consumer/test_groups.py",
        "the replayed state of a group: each of its requests reads it",
    ),
    "coordinator/group/consumer/membership.py": Reason(
        "coordinator/group/consumer/test_groups.py",
        "the steps of a heartbeat: epochs and answers as Kafka gave them",
    ),
    "coordinator/group/consumer/records.py": Reason(
        "coordinator/group/test_records.py", "each record beside the bytes that Kafka wrote"
    ),
    "coordinator/group/epoch_groups.py": Reason(
        "coordinator/group/test_shard.py", "a base class: the test goes through every kind of group"
    ),
    "coordinator/group/kind.py": Reason(
        "coordinator/group/test_shard.py",
        "a protocol without rules: the test holds every kind to it",
    ),
    "coordinator/group/membership/epochs.py": Reason(
        "coordinator/group/membership/test_errors.py", "constants of the protocol"
    ),
    "coordinator/group/membership/overrides.py": Reason(
        "coordinator/group/test_config_extremes.py", "a port, and an object that overrides nothing"
    ),
    "coordinator/group/offset_service.py": Reason(
        "coordinator/group/offsets/test_offsets.py", "commits and fetches, request by request"
    ),
    "coordinator/group/offsets/commit.py": Reason(
        "coordinator/group/offsets/test_offsets.py",
        "both steps of a commit, partition by partition",
    ),
    "coordinator/group/offsets/fetch.py": Reason(
        "coordinator/group/offsets/test_offsets.py", "fetches in every order of errors and in steps"
    ),
    "coordinator/group/offsets/steps.py": Reason(
        "coordinator/group/offsets/test_offsets.py", "two constants"
    ),
    "coordinator/group/service.py": Reason(
        "coordinator/runtime/test_runtime.py",
        "passes requests to the shard of their group; the test runs all of them",
    ),
    "coordinator/group/share/group.py": Reason(
        "coordinator/group/share/test_groups.py",
        "the replayed state of a group, compared with a model by seed",
    ),
    "coordinator/group/share/membership.py": Reason(
        "coordinator/group/share/test_groups.py",
        "heartbeats of share groups, step by step and by seed",
    ),
    "coordinator/group/share/persister.py": Reason(
        "coordinator/share_state/test_persister.py",
        "a port without code: the test is of its implementation",
    ),
    "coordinator/group/share/records.py": Reason(
        "coordinator/group/test_records.py", "records of share groups come back as Kafka wrote them"
    ),
    "coordinator/group/share_service.py": Reason(
        "coordinator/group/share/test_groups.py",
        "states of partitions and offsets of share groups, request by request",
    ),
    "coordinator/group/streams/context.py": Reason(
        "coordinator/group/streams/test_groups.py",
        "settings of a group, and a value for its decisions",
    ),
    "coordinator/group/streams/description.py": Reason(
        "reference/test_streams_answers.py", "a translation into the response"
    ),
    "coordinator/group/streams/endpoints.py": Reason(
        "coordinator/group/streams/test_groups.py",
        "a pure function: test_who_is_where goes through its cases",
    ),
    "coordinator/group/streams/group.py": Reason(
        "coordinator/group/streams/test_groups.py",
        "the replayed state of a group: each of its requests reads it",
    ),
    "coordinator/group/streams/status.py": Reason(
        "coordinator/group/streams/test_topology.py", "an enum; the codes are told there"
    ),
    "coordinator/group/streams/membership.py": Reason(
        "coordinator/group/streams/test_groups.py", "the steps of a heartbeat"
    ),
    "coordinator/group/streams/plan.py": Reason(
        "coordinator/group/streams/test_groups.py",
        "epoch, topology and target: delays, intervals, topics that are lost",
    ),
    "coordinator/group/streams/records.py": Reason(
        "coordinator/group/test_records.py", "each record beside the bytes that Kafka wrote"
    ),
    "coordinator/runtime/call_context.py": Reason(
        "coordinator/runtime/test_runtime.py", "a port without code"
    ),
    "coordinator/runtime/host.py": Reason(
        "coordinator/runtime/test_decisions.py", "fields of a shard at work, without a rule"
    ),
    "coordinator/runtime/loader.py": Reason(
        "coordinator/runtime/test_runtime.py",
        "loading in turns: Kafka's log, faults, corrupt records",
    ),
    "coordinator/runtime/writer.py": Reason(
        "coordinator/runtime/test_decisions.py", "every outcome of a write"
    ),
    "coordinator/share_state/service.py": Reason(
        "coordinator/share_state/test_reloads.py", "its requests by seed, beside a model"
    ),
    "coordinator/share_state/shard.py": Reason(
        "coordinator/share_state/test_reloads.py",
        "its decisions and records by seed, beside a model",
    ),
    "coordinator/topics.py": Reason(
        "metadata/test_image.py", "a port without code: MetadataImage is its implementation"
    ),
    "coordinator/transaction/producer_ids.py": Reason(
        "coordinator/transaction/test_service.py", "a value: a request for a producer id"
    ),
    "coordinator/transaction/shard.py": Reason(
        "coordinator/transaction/test_service.py", "every request in every state"
    ),
    "node/broker/broker_role.py": Reason(
        "server/test_hosting.py", "builds and starts the parts of a broker: no rule of its own"
    ),
    "node/broker/share_services.py": Reason(
        "e2e/test_share_fetch.py",
        "connects what has tests of its own; each connection is used by the test",
    ),
    "share/persister.py": Reason(
        "coordinator/share_state/test_persister.py",
        "a port without code: the test is of its implementation",
    ),
    "replication/leaders/replica_log.py": Reason(
        "replication/test_partition.py",
        "a port without code: mypy holds PartitionLog to it, and the test has a simpler log",
    ),
    "protocol/messages/**/*.py": Reason(
        "protocol/test_messages.py",
        "declarations only: each is compared with Kafka's own schema",
    ),
}
"""By a module's path relative to kbroker/, or a glob (`*` stays within one folder)."""
