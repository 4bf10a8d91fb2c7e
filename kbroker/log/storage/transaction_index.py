"""The transaction index of one segment: its aborted transactions, in `<base offset>.txnindex`."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kbroker.log.storage.files import (
    read_file,
    resize_file,
    unlink,
    write_range,
)
from kbroker.log.storage.index import CorruptIndexError
from kbroker.log.storage.index_entries import AbortedTransaction

TRANSACTION_ENTRY_BYTES: Final = 34


_TRANSACTION_ENTRY = Struct(">hqqqq")


class TransactionIndex:
    """`.txnindex`: the aborted transactions whose marker lies in this segment. The file is created
    with the first.
    """

    __slots__ = ("_entries", "exists", "path")

    def __init__(self, path: str, *, exists: bool) -> None:
        self.path = path
        self.exists = exists
        self._entries: list[AbortedTransaction] | None = None if exists else []

    def entries(self) -> list[AbortedTransaction]:
        """All entries, in order of their markers. Raises CorruptIndexError for an unknown
        version.
        """
        if self._entries is None:
            data = read_file(self.path) or b""
            entries: list[AbortedTransaction] = []
            whole = len(data) - len(data) % TRANSACTION_ENTRY_BYTES
            for version, *values in _TRANSACTION_ENTRY.iter_unpack(data[:whole]):
                if version != 0:
                    raise CorruptIndexError(
                        f"{self.path}: version {version} is unknown, expected 0"
                    )
                entries.append(AbortedTransaction(*values))
            self._entries = entries
        return self._entries

    def check(self, file_bytes: int) -> None:
        """Raises CorruptIndexError if an entry is torn, of an unknown version, out of order or
        contradicts itself.
        """
        if file_bytes % TRANSACTION_ENTRY_BYTES:
            raise CorruptIndexError(f"{self.path}: {file_bytes} bytes are no whole entries")
        previous, stable = -1, -1
        for entry in self.entries():
            if entry.last_offset <= previous:
                raise CorruptIndexError(
                    f"{self.path}: markers out of order at offset {entry.last_offset}"
                )
            if (
                entry.producer_id < 0
                or not 0 <= entry.first_offset <= entry.last_offset
                or not stable <= entry.last_stable_offset <= entry.last_offset + 1
            ):
                raise CorruptIndexError(f"{self.path}: {entry} contradicts itself")
            previous, stable = entry.last_offset, entry.last_stable_offset

    def append(self, transaction: AbortedTransaction) -> None:
        entries = self.entries()
        data = _TRANSACTION_ENTRY.pack(0, *transaction)
        write_range(self.path, data, len(entries) * TRANSACTION_ENTRY_BYTES)
        entries.append(transaction)
        self.exists = True

    def truncate_to(self, offset: int) -> None:
        """Remove transactions whose marker is at or above offset."""
        if not self.exists:
            return
        entries = self.entries()
        while entries and entries[-1].last_offset >= offset:
            entries.pop()
        resize_file(self.path, len(entries) * TRANSACTION_ENTRY_BYTES)

    def reset(self) -> None:
        """Remove all entries; an existing file is kept, empty (as in Kafka)."""
        self._entries = []
        if self.exists:
            resize_file(self.path, 0)

    def delete(self) -> None:
        unlink(self.path)
        self._entries = []
        self.exists = False

    def collect(self, fetch_offset: int, upper_offset: int, into: list[AbortedTransaction]) -> bool:
        """Add the entries that overlap [fetch_offset, upper_offset). Returns True if later segments
        need not be searched.
        """
        if self.exists:
            for entry in self.entries():
                if entry.last_offset >= fetch_offset and entry.first_offset < upper_offset:
                    into.append(entry)
                if entry.last_stable_offset >= upper_offset:
                    return True
        return False
