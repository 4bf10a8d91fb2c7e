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
    "cli/consume.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: what it prints is compared with what was produced",
    ),
    "cli/produce.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: lines, JSON, files, codecs and mistakes",
    ),
    "cli/topics.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: each sub-command and its mistakes",
    ),
    "cli/groups.py": Reason(
        "cli/test_commands.py",
        "a command over the wire: each sub-command and its mistakes",
    ),
    "cli/group_resets.py": Reason(
        "cli/test_commands.py",
        "each way to reset offsets, over the wire",
    ),
    "cli/hanging_transactions.py": Reason(
        "cli/test_transactions.py",
        "compared with the output of Apache Kafka's tool",
    ),
    "cli/record_decoders.py": Reason(
        "log/tools/test_dump.py",
        "compared with what Apache Kafka's decoders print of the same files",
    ),
    "cli/format.py": Reason(
        "cli/test_app.py",
        "options only: the directories are quorum/test_format.py's",
    ),
    "cli/serve.py": Reason(
        "cli/test_app.py",
        "options only, read with and without the command-line library",
    ),
    "cli/session.py": Reason(
        "cli/test_app.py",
        "options of all commands and their mistakes",
    ),
    "server/handlers/alter_configs.py": Reason(
        "clients/test_config_command.py",
        "a translation: Apache Kafka's tool alters topics and groups",
    ),
    "server/handlers/consumer_groups.py": Reason(
        "clients/test_consumer_protocol.py",
        "a translation: clients of the consumer protocol",
    ),
    "server/handlers/delete_groups.py": Reason(
        "cli/test_commands.py",
        "a translation: groups and offsets are deleted over the wire",
    ),
    "server/handlers/features.py": Reason(
        "e2e/test_transaction_versions.py",
        "a translation: levels are raised over the wire",
    ),
    "server/handlers/log_dirs.py": Reason(
        "e2e/test_log_directories.py",
        "a translation: replicas are moved and described over the wire",
    ),
    "server/handlers/share_fetch.py": Reason(
        "e2e/test_share_fetch.py",
        "a translation: sessions and acknowledgements over the wire",
    ),
    "server/handlers/share_groups.py": Reason(
        "cli/test_share_groups.py",
        "a translation: groups are shown, reset and deleted over the wire",
    ),
    "server/handlers/streams_groups.py": Reason(
        "cli/test_streams_groups.py",
        "a translation: heartbeats and descriptions over the wire",
    ),
    "server/handlers/transaction_tools.py": Reason(
        "cli/test_transactions.py",
        "a translation: transactions are listed, described and ended over the wire",
    ),
    "server/handlers/transactions.py": Reason(
        "clients/test_transactions.py",
        "a translation: transactional producers of three clients",
    ),
    "server/metrics.py": Reason(
        "server/test_metrics_endpoint.py",
        "families are read through the endpoint that serves them",
    ),
    "server/network/connection_shared.py": Reason(
        "server/network/test_connection.py",
        "the parts that each of these connections is given",
    ),
    "server/network/response_writer.py": Reason(
        "server/network/test_connection.py",
        "one half of a connection: order, file ranges and sendfile over real sockets",
    ),
    "server/network/responses.py": Reason(
        "server/network/test_answer_queue.py",
        "responses that wait, over real sockets: order, charges, bounds",
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
    "protocol/codec_encode.py": Reason(
        "protocol/test_codec.py", "one half of the codec, which is tested in both directions"
    ),
    "protocol/codec_decode.py": Reason(
        "protocol/test_codec.py", "one half of the codec, which is tested in both directions"
    ),
    "protocol/share_partition_state.py": Reason(
        "coordinator/share_state/test_persister.py", "values without a rule"
    ),
    "settings/group_table.py": Reason(
        "settings/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/topic_table.py": Reason(
        "settings/test_table.py", "declarations only: each row is compared with Kafka's own"
    ),
    "settings/served.py": Reason(
        "settings/test_table.py", "names only: each exists in the table and is read by a module"
    ),
    "testing/process.py": Reason(
        "e2e/test_kill.py", "a broker process: started, killed, paused and started again"
    ),
    "testing/pytest_plugin.py": Reason(
        "testing/test_embedded.py", "fixtures, which that test is given"
    ),
    "log/cleaner/compaction.py": Reason(
        "log/cleaner/test_cleaner.py",
        "the rules of which records remain, each shown on a log that is cleaned",
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
        "server/handlers/test_api_versions.py",
        "a table of what is supported: compared with the features that Apache Kafka announces",
    ),
    "share/persister.py": Reason(
        "coordinator/share_state/test_persister.py",
        "a port without code: the test is of its implementation",
    ),
    "replication/replica_log.py": Reason(
        "replication/test_partition.py",
        "a port without code: mypy holds PartitionLog to it, and the test has a simpler log",
    ),
    "protocol/messages/*.py": Reason(
        "protocol/test_messages.py",
        "declarations only: each is compared with Kafka's own schema",
    ),
}
"""By a module's path relative to kbroker/, or a glob (`*` stays within one folder)."""

NOT_YET_COUNTS: Mapping[str, int] = {
    "coordinator": 42,
    "node": 4,
    "replication": 1,
    "server": 3,
}
"""Number of modules in `NOT_YET` by room. A number may only shrink."""

NOT_YET: frozenset[str] = frozenset(
    {
        "coordinator/group/classic/generation.py",
        "coordinator/group/classic/groups.py",
        "coordinator/group/classic/rebalance.py",
        "coordinator/group/consumer/classic_clients.py",
        "coordinator/group/consumer/classic_members.py",
        "coordinator/group/consumer/context.py",
        "coordinator/group/consumer/description.py",
        "coordinator/group/consumer/group.py",
        "coordinator/group/consumer/membership.py",
        "coordinator/group/consumer/plan.py",
        "coordinator/group/consumer/records.py",
        "coordinator/group/consumer/regex_schedule.py",
        "coordinator/group/epoch_groups.py",
        "coordinator/group/kind.py",
        "coordinator/group/membership/epochs.py",
        "coordinator/group/membership/overrides.py",
        "coordinator/group/offset_service.py",
        "coordinator/group/offsets/commit.py",
        "coordinator/group/offsets/fetch.py",
        "coordinator/group/offsets/steps.py",
        "coordinator/group/service.py",
        "coordinator/group/share/group.py",
        "coordinator/group/share/membership.py",
        "coordinator/group/share/persister.py",
        "coordinator/group/share/records.py",
        "coordinator/group/share_service.py",
        "coordinator/group/streams/context.py",
        "coordinator/group/streams/description.py",
        "coordinator/group/streams/endpoints.py",
        "coordinator/group/streams/group.py",
        "coordinator/group/streams/membership.py",
        "coordinator/group/streams/plan.py",
        "coordinator/group/streams/records.py",
        "coordinator/runtime/call_context.py",
        "coordinator/runtime/host.py",
        "coordinator/runtime/loader.py",
        "coordinator/runtime/writer.py",
        "coordinator/share_state/service.py",
        "coordinator/share_state/shard.py",
        "coordinator/topics.py",
        "coordinator/transaction/producer_ids.py",
        "coordinator/transaction/shard.py",
        "node/broker_role.py",
        "node/coordinators.py",
        "node/futures.py",
        "node/share_services.py",
        "replication/hosting.py",
        "server/handlers/delete_records.py",
        "server/handlers/leader_epochs.py",
        "server/handlers/share_state.py",
    }
)
"""Modules whose tests have not been written."""
