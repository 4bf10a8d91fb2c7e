"""Carrying a start out: look at output, checkpoint and cluster, decide, and make them agree.

The order of writes lets a start be cut off anywhere: the commit that says where the archive goes on
holds before files are removed, and the identity follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from ..checkpoint import Offsets, QueryLog, initial_offsets, read_query_log
from ..cluster import ClusterView, group_offsets, look
from ..errors import JobError, first_cause
from ..identity import Identity, new_identity, query_numbers, read_identity, write_identity
from ..kafka_source import check_limits
from ..lease import Lease, refuse_second_writer
from ..storage import Folder
from .commits import NO_BATCH, STATE_FOLDER, Commit
from .options import ArchiveOptions
from .start import Plan, Situation, decide
from .stores import Store

LEASE: Final = f"{STATE_FOLDER}/writer.json"


@dataclass(frozen=True, slots=True)
class Opened:
    """An archive that may be written. notes: lines for the user."""

    options: ArchiveOptions
    store: Store
    checkpoint: Folder
    query: Folder
    identity: Identity
    view: ClusterView
    lease_id: str
    notes: tuple[str, ...] = ()


def survey(options: ArchiveOptions, store: Store) -> tuple[Situation, ClusterView]:
    """What there is; nothing is changed. Raises JobError if something cannot be looked at."""
    check_limits(options.source_options, options.trigger)
    view = look(options.bootstrap_servers, options.subscription, options.security_protocol)
    output, checkpoint = store.folder, Folder(options.checkpoint_uri)
    try:
        identity = read_identity(checkpoint)
        commit = store.newest()
        query = checkpoint.child(identity.query_folder) if identity is not None else None
        group: Offsets = {}
        if options.group is not None:
            group = group_offsets(options.bootstrap_servers, options.group, view.topics)
        situation = Situation(
            output=str(output),
            checkpoint=str(checkpoint),
            job=options.job,
            layout=options.layout,
            topics=view.topics if view.is_known else None,
            identity=identity,
            log=read_query_log(query) if query is not None else QueryLog(-1, -1, {}),
            begun=begin_of(query, identity) if query is not None and identity is not None else {},
            commit=commit,
            records=store.count(commit) if commit is not None else 0,
            foreign=store.foreign(commit),
            has_unknown_checkpoint=identity is None and checkpoint.exists("offsets"),
            has_lost_identity=identity is None and bool(query_numbers(checkpoint)),
            fail_on_data_loss=options.fail_on_data_loss,
            resume_from=options.resume_from,
            group=group,
        )
    except OSError as error:
        raise JobError(f"{output} or {checkpoint} cannot be read: {_reason(error)}") from error
    return situation, view


def begin_of(query: Folder, identity: Identity) -> Offsets:
    """Where a query begins its first batch: as Spark has noted, or else as it will be told; empty
    for the job's --startingOffsets.
    """
    noted = initial_offsets(query)
    return identity.starting if noted is None else noted


def check_start(options: ArchiveOptions, store: Store) -> tuple[Plan, ClusterView]:
    """What a start would do; nothing is changed. Raises JobError or StartRefused."""
    situation, view = survey(options, store)
    refuse_second_writer(store.folder, LEASE)
    return decide(situation), view


@contextmanager
def opened(options: ArchiveOptions, store: Store) -> Iterator[Opened]:
    """Check the start, take the lease and make everything ready for the query. Raises JobError or
    StartRefused; nothing is changed then.
    """
    check_start(options, store)
    output, checkpoint = store.folder, Folder(options.checkpoint_uri)
    for option, folder in (("--output", output), ("--checkpoint", checkpoint)):
        folder.check_writable(option)
    lease = Lease(output, LEASE)
    lease.acquire()
    try:
        situation, view = survey(options, store)  # again: another writer may have ended in between
        plan = decide(situation)
        try:
            is_resume = plan.action in ("resume", "finish resume")
            with store.alone() if is_resume else nullcontext():
                identity = _carry_out(situation, plan, store, checkpoint)
        except OSError as error:
            raise JobError(f"{output}: {_reason(error)}") from error
        except JobError:
            raise
        except Exception as error:  # of a table: pyspark's own, and Java's through py4j
            raise JobError(f"{output}: {first_cause(error)}") from error
        yield Opened(
            options,
            store,
            checkpoint,
            checkpoint.child(identity.query_folder),
            identity,
            view,
            lease.lease_id,
            plan.notes,
        )
    finally:
        lease.release()


def _carry_out(found: Situation, plan: Plan, store: Store, checkpoint: Folder) -> Identity:
    """Make output and checkpoint what the plan says; gives the identity to go on with."""
    commit = found.commit
    if commit is not None:
        commit = store.finish(commit)
        if commit.layout != found.layout:  # it has no records: otherwise `decide` refuses
            number = commit.number + 1
            commit = replace(commit, number=number, layout=found.layout, files=(), removed=())
            store.add(commit)
            commit = store.finish(commit)
        found = replace(found, commit=commit)
    identity = found.identity or new_identity(found.job, str(store.folder))
    topic_ids = {name: facts.topic_id for name, facts in (found.topics or {}).items()}
    if plan.action == "continue":
        return identity
    if plan.action == "begin":
        first = Commit(
            commit.number + 1 if commit is not None else 1,
            identity.checkpoint_id,
            identity.query,
            NO_BATCH,
            found.layout,
            {},
            topic_ids,
        )
        store.add(first)
        store.finish(first)
        write_identity(checkpoint, identity)
        return identity
    if plan.action == "resume":
        # One that the folder has goes on where it was, wherever it is told to begin.
        query = max(identity.query, commit.query if commit is not None else 0)
        query = max(query, *query_numbers(checkpoint), 0) + 1
        commit = _resumed(found, plan, store, replace(identity, query=query), topic_ids)
        store.add(commit)
        store.finish(commit)
    if commit is None:
        raise AssertionError("a resume without a commit")
    identity = replace(
        identity,
        query=commit.query,
        starting=commit.positions,
        batch_id=NO_BATCH,
        topics=found.topics or identity.topics,
    )
    write_identity(checkpoint, identity)
    return identity


def _resumed(
    found: Situation, plan: Plan, store: Store, identity: Identity, topic_ids: dict[str, str]
) -> Commit:
    """The commit with which another query, that of the identity, begins at the plan's positions."""
    commit = found.commit
    generations = dict(commit.generations) if commit is not None else {}
    for topic in plan.recreated:
        generations[topic] = generations.get(topic, 1) + 1
    back, removed_records = store.rewound(plan.positions, generations)
    kept = {
        topic: offsets
        for topic, offsets in (commit.positions if commit is not None else {}).items()
        if topic not in back.positions
    }
    return Commit(
        number=commit.number + 1 if commit is not None else 1,
        checkpoint_id=identity.checkpoint_id,
        query=identity.query,
        batch_id=NO_BATCH,
        layout=found.layout,
        positions={**kept, **back.positions},
        topic_ids={**(commit.topic_ids if commit is not None else {}), **topic_ids},
        generations=generations,
        removed=back.removed,
        records=(commit.records if commit is not None else 0) - removed_records,
        size_bytes=commit.size_bytes if commit is not None else 0,
    )


def _reason(error: OSError) -> str:
    return error.strerror or str(error).splitlines()[0]
