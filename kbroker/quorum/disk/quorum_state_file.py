"""The `quorum-state` file: the epoch, its leader and this node's vote, in Kafka's JSON. It is
written before a vote or epoch is sent to another node.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kbroker.log.storage.files import atomic_write, read_file
from kbroker.model import ZERO_UUID, StartupError, uuid_from_string, uuid_to_string
from kbroker.quorum.raft.election_state import UNKNOWN_ID, ElectionState

QUORUM_STATE: Final = "quorum-state"


def read_state(directory: Path) -> ElectionState | None:
    """The content of the file, None if there is none. Raises StartupError for a damaged one."""
    path = directory / QUORUM_STATE
    data = read_file(path)
    if data is None:
        return None
    try:
        values: dict[str, Any] = json.loads(data)  # Any: what JSON holds, checked below
        version = int(values["data_version"])
        if version not in (0, 1):
            raise ValueError(f"data_version {version}")
        state = ElectionState(
            epoch=int(values["leaderEpoch"]),
            leader_id=int(values["leaderId"]),
            voted_id=int(values["votedId"]),
            voted_directory_id=uuid_from_string(values["votedDirectoryId"])
            if version
            else ZERO_UUID,
        )
        if state.epoch < 0 or state.leader_id < UNKNOWN_ID or state.voted_id < UNKNOWN_ID:
            raise ValueError(f"negative numbers: {state}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(
            f"{path} is corrupt ({type(error).__name__}: {error}): restore it from a backup, or, "
            "if this is the only "
            "controller of the cluster, delete it"
        ) from None
    return state


def write_state(
    directory: Path, state: ElectionState, *, kraft_version: int, voter_ids: Sequence[int]
) -> None:
    """Write the file, synced. Blocks. Raises LogDirectoryError."""
    values: dict[str, Any] = {  # Any: JSON
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_id,
    }
    if kraft_version > 0:
        values |= {"votedDirectoryId": uuid_to_string(state.voted_directory_id), "data_version": 1}
    else:
        voters = [{"voterId": voter} for voter in voter_ids]
        values = {
            "clusterId": "",
            **values,
            "appliedOffset": 0,
            "currentVoters": voters,
            "data_version": 0,
        }
    data = json.dumps(values, separators=(",", ":")).encode("ascii")
    atomic_write(directory / QUORUM_STATE, data)
