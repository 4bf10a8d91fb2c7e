"""Checks of committed offsets of groups: they never go back, and those of a transaction are visible
if and only if it is committed.

A fetch may return the offset of a commit that began before the fetch ended, unless a later commit
was acknowledged between the two. A commit without an acknowledgement may take effect at any time;
once a fetch has returned its offset, it counts as acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from kbroker.model import TopicPartition
from kbroker.testing.history.operations import Ending, History, OffsetCommit, OffsetFetch


def check_committed_offsets(history: History) -> Iterator[str]:
    """Check that each fetched offset can be the last committed one of the group."""
    commits = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    seen_ms = _seen_ms(history, commits)
    for fetch in history.fetches:
        problem = _problem(history, fetch, commits[fetch.group, fetch.partition], seen_ms)
        if problem is not None:
            found = "no offset" if fetch.offset is None else f"offset {fetch.offset}"
            yield f"group {fetch.group} of {fetch.partition}: {found} was fetched, {problem}"


def _seen_ms(
    history: History, commits: Mapping[tuple[str, TopicPartition], Sequence[OffsetCommit]]
) -> dict[int, float]:
    """When fetches had returned commits, by the commits' ids. Of several commits of one offset the
    first is used.
    """
    first: dict[tuple[str, TopicPartition, int], OffsetCommit] = {}
    for (group, partition), all_commits in commits.items():
        for commit in all_commits:
            present = first.setdefault((group, partition, commit.offset), commit)
            if commit.began_ms < present.began_ms:
                first[group, partition, commit.offset] = commit
    seen: dict[int, float] = {}
    for fetch in history.fetches:
        if fetch.offset is not None:
            found = first.get((fetch.group, fetch.partition, fetch.offset))
            if found is not None:
                seen[id(found)] = min(seen.get(id(found), inf), fetch.ended_ms)
    return seen


def _problem(
    history: History,
    fetch: OffsetFetch,
    commits: Sequence[OffsetCommit],
    seen_ms: Mapping[int, float],
) -> str | None:
    """Why the fetch cannot return its offset; None if it can."""
    acknowledged = [
        commit
        for commit in commits
        if min(_ended_ms(history, commit, fetch), seen_ms.get(id(commit), inf)) < fetch.began_ms
    ]
    last = max(acknowledged, key=lambda commit: commit.began_ms, default=None)
    if fetch.offset is None:
        return None if last is None else f"after {last.offset} was committed"
    same = [commit for commit in commits if commit.offset == fetch.offset]
    if not same:
        return "which was never committed"
    possible = [
        commit for commit in same if history.ending_of(commit.transaction) is not Ending.ABORTED
    ]
    if not possible:
        return f"which was committed in the aborted transaction {same[0].transaction} only"
    for commit in possible:
        if commit.began_ms <= fetch.ended_ms and (
            last is None or _ended_ms(history, commit, fetch) >= last.began_ms
        ):
            return None
    if last is None:
        return "before it was committed"
    return f"after {last.offset} was committed"


def _ended_ms(history: History, commit: OffsetCommit, fetch: OffsetFetch) -> float:
    """From when on the fetch must return the commit, or a later one."""
    if commit.transaction is None:
        return inf if commit.ended_ms is None else commit.ended_ms
    transaction = history.transactions[commit.transaction]
    if transaction.ending is not Ending.COMMITTED or transaction.ended_ms is None:
        return inf
    # The markers follow the answer to the commit; a fetch that requires stable offsets waits for
    # them.
    return transaction.ended_ms if fetch.requires_stable else inf
