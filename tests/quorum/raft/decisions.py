"""The content of the cases of tests/data/decisions on the quorum (`tests.decisions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.model import ZERO_UUID, Uuid, uuid_from_string
from kbroker.quorum.raft.voters.voter_set import ReplicaKey, Voter, VoterSet
from tests.decisions import Case, cases

__all__ = ["Case", "cases", "directory_id", "expected_rows", "replica_key", "rows", "voter_set"]


def directory_id(text: str | None) -> Uuid:
    """An unknown directory id is null or empty in the files."""
    return uuid_from_string(text) if text else ZERO_UUID


def replica_key(value: Case) -> ReplicaKey:
    return ReplicaKey(value["id"], directory_id(value["directoryId"]))


def voter_set(rows: Sequence[Sequence[Any]]) -> VoterSet:
    """A set from rows of [id, directory id]."""
    return VoterSet(Voter(row[0], directory_id(row[1])) for row in rows)


def rows(voters: VoterSet | None) -> list[list[Any]] | None:
    """[id, directory id] of each voter, as `voter_set` reads it; None for no set."""
    if voters is None:
        return None
    return [[voter.id, voter.directory_id] for voter in voters]


def expected_rows(value: Sequence[Sequence[Any]] | None) -> list[list[Any]] | None:
    """The rows of a file, in the form of `rows`."""
    return None if value is None else [[row[0], directory_id(row[1])] for row in value]
