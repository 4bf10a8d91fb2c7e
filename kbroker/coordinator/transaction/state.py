"""The states of a transactional id and their transitions, as data.

The numbers are stored in the log, clients see the names. Sources: KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """The state of a transactional id. Kafka's tools know PREPARE_EPOCH_FENCE and DEAD; kbroker
    writes no record with them: a fenced transaction moves to PREPARE_ABORT in one step.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """The name in Kafka's responses, such as `PrepareCommit`."""
        return _SHOWN[self]


_SHOWN: Final[Mapping[TransactionState, str]] = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}

STATE_BY_NAME: Final[Mapping[str, TransactionState]] = {
    name: state for state, name in _SHOWN.items()
}

_S = TransactionState
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset(
        {_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.PREPARE_EPOCH_FENCE}
    ),
    _S.PREPARE_COMMIT: frozenset({_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.PREPARE_ABORT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.PREPARE_ABORT}),
}
"""The allowed next states of each state. A prepared end may be written again if its first record
was not known to be committed. A producer of transaction.version 2 may abort without a transaction
to get a new epoch.
"""

ENDING: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The end is decided; its markers are being written."""
AT_REST: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open."""
