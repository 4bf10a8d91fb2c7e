"""The run of `dedupe` and `aggregate`: targets made ready, the query, the report."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..copying.opening import Opened, describe_start, opened
from ..copying.start import query_id
from ..copying.stream import run_copy
from ..copying.targets import check_target, create_copy, find_target, retention_of
from ..errors import StartRefused
from ..exactly_once.sink import kafka_sink
from ..exactly_once.source_offsets import CheckpointOffsets
from ..identity import read_identity
from ..progress import Reporter, Totals
from ..storage import Folder
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from .batches import Rule, StatefulBatches, states_of
from .options import StatefulOptions
from .state import Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StatefulReport:
    """What a run did: records read, and the results written. totals: as Spark counted them."""

    options: StatefulOptions
    totals: Totals
    counts: Counts
    written: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "rows": self.counts.read,
            "written": self.written,
            "duplicates": self.counts.duplicates,
            "late": self.counts.late,
            "without_id": self.counts.without_id,
            "batches": self.totals.batches,
            "end_offsets": self.totals.end,
        }

    def to_text(self) -> str:
        """The line at the end of a run."""
        options, counts = self.options, self.counts
        said = [f"{self.written:,} to {options.to_topic}"]
        if counts.duplicates:
            said.append(counted(counts.duplicates, "duplicate"))
        if counts.late:
            where = f"to {options.late_topic}" if options.late_topic else "dropped"
            said.append(f"{counts.late:,} late, {where}")
        if counts.without_id:
            said.append(f"{counts.without_id:,} without an id")
        return (
            f"read {counted(counts.read, 'record')} of {options.topic}: {'; '.join(said)}; in "
            f"{counted(self.totals.batches, 'batch')}"
        )


def describe_stateful_start(options: StatefulOptions, rule: str) -> str:
    """What a start would do, in one line; nothing is changed. Raises JobError or StartRefused."""
    said = describe_start(options.stream)
    checkpoint = Folder(options.stream.checkpoint_uri)
    identity = read_identity(checkpoint)
    if identity is not None and options.resume_from is None:
        check_rule(checkpoint, identity.query, rule)
    client = BlockingClient(ClusterAddress(options.bootstrap_servers))
    try:
        for name in options.targets:
            if find_target(client, name) is None:
                said += f"; topic {name} is created"
    finally:
        client.close()
    return said


def check_rule(checkpoint: Folder, query: int, rule: str) -> None:
    """Raises StartRefused if the state of a query was made by another rule."""
    newest = states_of(checkpoint, query).newest()
    if newest is not None and newest.rule != rule:
        raise StartRefused(
            f"the state in {checkpoint} was made with {newest.rule}, and this is {rule}: give the "
            "options as they were, another --checkpoint, --to and --queryName, or --resume-from "
            "output to begin with an empty state"
        )


def run_stateful(
    spark: SparkSession,
    options: StatefulOptions,
    rule: Rule,
    target_configs: Mapping[str, str],
    *,
    reporter: Reporter | None,
    stop: threading.Event | None,
) -> StatefulReport:
    """Run a job: to the end of what there is now, or with a trigger until `stop` is set.

    target_configs: of a target that is created. Raises StartRefused if target, checkpoint and
    source do not fit together, JobError if the query failed; what was committed stays.
    """
    with opened(options.stream) as copy:
        check_rule(copy.checkpoint, copy.identity.query, rule.text)
        notes = _prepared(options, copy, rule, target_configs)
        if copy.identity.query > 1 and options.resume_from is not None:
            notes.append("the state begins empty: what was read before is not remembered")
        batches = _batches(options, copy, rule)
        totals = run_copy(spark, copy, batches, reporter=reporter, stop=stop)
    return StatefulReport(options, totals, batches.counts, batches.written, (*copy.notes, *notes))


def _batches(options: StatefulOptions, copy: Opened, rule: Rule) -> StatefulBatches:
    ends = CheckpointOffsets(str(copy.query))
    sink = kafka_sink(
        options.bootstrap_servers,
        query_name=options.stream.query_name,
        topics=options.targets,
        order_by=rule.order_by,
        end_offsets=ends,
        query_id=query_id(copy.identity),
        adopt_checkpoint=copy.is_adopted,
    )
    return StatefulBatches(
        sink,
        rule,
        states_of(copy.checkpoint, copy.identity.query),
        ends,
        options.delay_ms,
        options.to_topic,
        options.late_topic,
        max(1, len(copy.view.topics[options.topic].latest)),
    )


def _prepared(
    options: StatefulOptions, copy: Opened, rule: Rule, configs: Mapping[str, str]
) -> list[str]:
    """The targets, created with as many partitions as the source if need be. Gives notes."""
    count = len(copy.view.topics[options.topic].latest)
    client = BlockingClient(ClusterAddress(options.bootstrap_servers))
    notes: list[str] = []
    try:
        retention = retention_of(client, options.topic)
        for name in options.targets:
            topic = find_target(client, name)
            if topic is None:
                own = configs if name == options.to_topic else {}
                _, note = create_copy(client, name, count, own, retention)
                notes.append(note)
            else:
                kept = count if rule.keeps_partitions else 1
                notes += check_target(client, topic, kept, retention)
    finally:
        client.close()
    return notes
