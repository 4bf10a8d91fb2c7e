"""Carrying a start out: look at output, checkpoint and cluster, decide, and make them agree.

The order of writes lets a start be cut off anywhere: the commit that says where the archive goes on
holds before files are removed, and the identity follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from ..checkpoint import Offsets, QueryLog, read_query_log
from ..cluster import ClusterView, group_offsets, look
from ..errors import JobError
from ..identity import Identity, new_identity, read_identity, write_identity
from ..lease import Lease, refuse_second_writer
from ..storage import Folder
from .commits import (
    NO_BATCH,
    STATE_FOLDER,
    Commit,
    add_commit,
    clean_up,
    newest_commit,
    publish,
)
from .layout import rewind
from .options import ArchiveOptions
from .start import JOB, Plan, Situation, decide

LEASE: Final = f"{STATE_FOLDER}/writer.json"


@dataclass(frozen=True, slots=True)
class Opened:
    """An archive that may be written. notes: lines for the user."""

    options: ArchiveOptions
    output: Folder
    checkpoint: Folder
    query: Folder
    identity: Identity
    view: ClusterView
    lease_id: str
    notes: tuple[str, ...] = ()


def survey(options: ArchiveOptions) -> tuple[Situation, ClusterView]:
    """What there is; nothing is changed. Raises JobError if something cannot be looked at."""
    view = look(options.bootstrap_servers, options.subscription, options.security_protocol)
    output, checkpoint = Folder(options.output_uri), Folder(options.checkpoint_uri)
    try:
        identity = read_identity(checkpoint)
        commit = newest_commit(output)
        query = checkpoint.child(identity.query_folder) if identity is not None else None
        group: Offsets = {}
        if options.group is not None:
            group = group_offsets(options.bootstrap_servers, options.group, view.topics)
        situation = Situation(
            output=str(output),
            checkpoint=str(checkpoint),
            layout=options.layout,
            topics=view.topics if view.is_known else None,
            identity=identity,
            log=read_query_log(query) if query is not None else QueryLog(-1, -1, {}),
            commit=commit,
            foreign="" if commit is not None else _foreign(output),
            has_unknown_checkpoint=identity is None and checkpoint.exists("offsets"),
            fail_on_data_loss=options.fail_on_data_loss,
            resume_from=options.resume_from,
            group=group,
        )
    except OSError as error:
        raise JobError(f"{output} or {checkpoint} cannot be read: {_reason(error)}") from error
    return situation, view


def check_start(options: ArchiveOptions) -> tuple[Plan, ClusterView]:
    """What a start would do; nothing is changed. Raises JobError or StartRefused."""
    situation, view = survey(options)
    refuse_second_writer(Folder(options.output_uri), LEASE)
    return decide(situation), view


@contextmanager
def opened(options: ArchiveOptions) -> Iterator[Opened]:
    """Check the start, take the lease and make everything ready for the query. Raises JobError or
    StartRefused; nothing is changed then.
    """
    check_start(options)
    output, checkpoint = Folder(options.output_uri), Folder(options.checkpoint_uri)
    for option, folder in (("--output", output), ("--checkpoint", checkpoint)):
        folder.check_writable(option)
    lease = Lease(output, LEASE)
    lease.acquire()
    try:
        situation, view = survey(options)  # again: another writer may have ended in between
        plan = decide(situation)
        try:
            identity = _carry_out(situation, plan, output, checkpoint)
        except OSError as error:
            raise JobError(f"{output}: {_reason(error)}") from error
        yield Opened(
            options,
            output,
            checkpoint,
            checkpoint.child(identity.query_folder),
            identity,
            view,
            lease.lease_id,
            plan.notes,
        )
    finally:
        lease.release()


def _carry_out(found: Situation, plan: Plan, output: Folder, checkpoint: Folder) -> Identity:
    """Make output and checkpoint what the plan says; gives the identity to go on with."""
    commit = found.commit
    if commit is not None:
        publish(output, commit)
        clean_up(output, commit)
    identity = found.identity or new_identity(JOB, str(output))
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
        add_commit(output, first)
        write_identity(checkpoint, identity)
        return identity
    if plan.action == "resume":
        commit = _resumed(found, plan, output, identity, topic_ids)
        add_commit(output, commit)
        publish(output, commit)
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
    found: Situation, plan: Plan, output: Folder, identity: Identity, topic_ids: dict[str, str]
) -> Commit:
    """The commit with which another query begins at the plan's positions."""
    from .files import count_records

    commit = found.commit
    generations = dict(commit.generations) if commit is not None else {}
    for topic in plan.recreated:
        generations[topic] = generations.get(topic, 1) + 1
    back = rewind(output.files(), plan.positions, generations)
    removed_records = count_records(output, back.removed)
    kept = {
        topic: offsets
        for topic, offsets in (commit.positions if commit is not None else {}).items()
        if topic not in back.positions
    }
    return Commit(
        number=commit.number + 1 if commit is not None else 1,
        checkpoint_id=identity.checkpoint_id,
        query=max(identity.query, commit.query if commit is not None else 0) + 1,
        batch_id=NO_BATCH,
        layout=found.layout,
        positions={**kept, **back.positions},
        topic_ids={**(commit.topic_ids if commit is not None else {}), **topic_ids},
        generations=generations,
        removed=back.removed,
        records=(commit.records if commit is not None else 0) - removed_records,
        size_bytes=commit.size_bytes if commit is not None else 0,
    )


def _foreign(output: Folder) -> str:
    names = [name for name in output.names() if not name.startswith(".")]
    if "_spark_metadata" in names:
        return (
            f"{output} was written by Spark's file sink (it has _spark_metadata), whose files only "
            "Spark reads once"
        )
    names = [name for name in names if name != STATE_FOLDER]
    return f"{output} holds what archive did not write ({names[0]})" if names else ""


def _reason(error: OSError) -> str:
    return error.strerror or str(error).splitlines()[0]
