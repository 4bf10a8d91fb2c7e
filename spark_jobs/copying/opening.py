"""Carrying the start of a streaming copy out: look at checkpoint, tokens and source, decide, and
make the checkpoint say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from kbroker.protocol.errors import ErrorCode, KafkaError

from ..checkpoint import QueryLog, read_query_log
from ..cluster import ClusterView, Subscription, Topics, look
from ..errors import JobError
from ..exactly_once.check import newest_token
from ..exactly_once.driver import QueryDriver, QuerySettings
from ..exactly_once.errors import sink_error
from ..exactly_once.tokens import Token
from ..identity import Identity, new_identity, query_numbers, read_identity, write_identity
from ..kafka_source import check_limits
from ..lease import Lease, refuse_second_writer
from ..storage import Folder
from ..wire.client import BlockingClient, ClusterAddress
from .options import StreamOptions
from .start import Plan, Situation, decide, refuse_others
from .targets import look_at_targets

LEASE: Final = "writer.json"
LOOK_S: Final = 3.0
"""How long a check waits for an open transaction of the query."""

BATCH_IS_OPEN: Final = (
    "a batch of it is open: this query writes it now, or was ended within it; a start ends it"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A copy that may run. is_adopted: see `start.Plan`. notes: lines for the user."""

    options: StreamOptions
    checkpoint: Folder
    query: Folder
    identity: Identity
    view: ClusterView
    lease_id: str
    is_adopted: bool
    notes: tuple[str, ...] = ()


def check_start(options: StreamOptions) -> tuple[Plan | None, ClusterView]:
    """What a start would do, None while a batch is open; nothing is changed. Raises JobError or
    StartRefused.
    """
    check_limits(options.source_options, options.trigger)
    look(options.target_servers, Subscription(), "PLAINTEXT")
    refuse_second_writer(Folder(options.checkpoint_uri), LEASE, "--checkpoint and --queryName")
    client = BlockingClient(ClusterAddress(options.target_servers, retry_timeout_s=LOOK_S))
    try:
        token = newest_token(client, options.query_name)
    except KafkaError as error:
        if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            return None, look(options.servers, options.subscription, "PLAINTEXT")
        raise sink_error(error, f"checking query {options.query_name}") from error
    finally:
        client.close()
    situation, view = _survey(options, token)
    return decide(situation), view


def describe_start(options: StreamOptions) -> str:
    """What a start would do, in one line. Raises as `check_start` does."""
    plan, view = check_start(options)
    names = sorted(view.topics)
    shown = ", ".join(names[:5]) + (" and more" if len(names) > 5 else "")
    actions = {
        "begin": "begins a new copy",
        "continue": "goes on where it stopped",
        "resume": f"resumes from {options.resume_from}",
    }
    does, notes = (BATCH_IS_OPEN, ()) if plan is None else (actions[plan.action], plan.notes)
    return "; ".join((f"{options.target}: {does}", f"topics {shown}", *notes))


@contextmanager
def opened(options: StreamOptions) -> Iterator[Opened]:
    """Check the start, take the lease and make the checkpoint ready for the query. Raises JobError
    or StartRefused; nothing is changed then.
    """
    check_limits(options.source_options, options.trigger)
    checkpoint = Folder(options.checkpoint_uri)
    # Before an earlier run's transaction is ended: that run may be alive.
    refuse_second_writer(checkpoint, LEASE, "--checkpoint and --queryName")
    look(options.target_servers, Subscription(), "PLAINTEXT")
    checkpoint.check_writable("--checkpoint")
    lease = Lease(checkpoint, LEASE, "--checkpoint and --queryName")
    lease.acquire()
    try:
        _refuse_others(options)
        situation, view = _survey(options, _own_token(options))
        plan = decide(situation)
        identity = _carry_out(situation, plan, checkpoint)
        yield Opened(
            options,
            checkpoint,
            checkpoint.child(identity.query_folder),
            identity,
            view,
            lease.lease_id,
            plan.is_adopted,
            plan.notes,
        )
    finally:
        lease.release()


def _refuse_others(options: StreamOptions) -> None:
    """InitProducerId ends what a run of the same query name writes. One with another checkpoint may
    be alive, and is only ended where a resume is wanted.
    """
    client = BlockingClient(ClusterAddress(options.target_servers, retry_timeout_s=LOOK_S))
    try:
        token = newest_token(client, options.query_name)
    except KafkaError:  # what cannot be read yet is decided behind InitProducerId
        token = None
    finally:
        client.close()
    refuse_others(_found(options, token, {}, {}))


def _own_token(options: StreamOptions) -> Token | None:
    client = BlockingClient(ClusterAddress(options.target_servers))
    driver = QueryDriver(client, QuerySettings(options.query_name, ()))
    try:
        return driver.newest_token()
    finally:
        driver.close()


def _survey(options: StreamOptions, token: Token | None) -> tuple[Situation, ClusterView]:
    view = look(options.servers, options.subscription, "PLAINTEXT")
    names = dict.fromkeys(name for each in options.targets.values() for name in each)
    there = look_at_targets(options.target_servers, names) if token is not None else {}
    return _found(options, token, view.topics, there), view


def _found(options: StreamOptions, token: Token | None, topics: Topics, there: Topics) -> Situation:
    checkpoint = Folder(options.checkpoint_uri)
    try:
        identity = read_identity(checkpoint)
        query = checkpoint.child(identity.query_folder) if identity is not None else None
        return Situation(
            job=options.job,
            query_name=options.query_name,
            target=options.target,
            checkpoint=str(checkpoint),
            topics=topics,
            identity=identity,
            log=read_query_log(query) if query is not None else QueryLog(-1, -1, {}),
            token=token,
            has_unknown_checkpoint=identity is None and checkpoint.exists("offsets"),
            fail_on_data_loss=options.fail_on_data_loss,
            resume_from=options.resume_from,
            targets=options.targets,
            there=there,
        )
    except OSError as error:
        raise JobError(f"{checkpoint} cannot be read: {error.strerror or error}") from error


def _carry_out(found: Situation, plan: Plan, checkpoint: Folder) -> Identity:
    identity = found.identity or new_identity(found.job, found.target)
    if plan.action == "continue":
        return identity
    if plan.action == "resume":
        identity = replace(
            identity,
            query=max(identity.query, *query_numbers(checkpoint), 0) + 1,
            starting=plan.positions,
            batch_id=-1,
            topics={**identity.topics, **found.topics},
        )
    write_identity(checkpoint, identity)
    return identity
