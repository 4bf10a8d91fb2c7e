"""`kbroker` that counts, in a file its test maps too, what its connections make of their frames.

`python counted_broker.py COUNTS serve ...`. The neighbour is `test_fuzz.py`: a sender knows what it
sent, only the broker knows what it read.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Final

from kbroker.__main__ import main
from kbroker.protocol.errors import MalformedRequest
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.receive_buffer import ReceiveBuffer
from kbroker.server.requests import PendingResponse
from kbroker.server.session import Session

PROBE: Final = struct.pack(">hhihs", 18, 0, 0x50524F42, 1, b"p")
"""ApiVersions v0: the frame (without its length) that a sender puts behind another to see that
this one was read. It isn't counted.
"""

COUNTS: Final = struct.Struct("=QQQ")
"""Frames handed to the dispatcher, frames refused for their length alone, and surprises: unexpected
exceptions.
"""


def count(path: Path) -> None:
    """Count into path from now on."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), COUNTS.size)
    dispatched = refused = surprises = 0
    next_frame, dispatch = ReceiveBuffer.next_frame, Dispatcher.dispatch

    def counted_frame(self: ReceiveBuffer) -> memoryview | None:
        nonlocal refused
        try:
            return next_frame(self)
        except MalformedRequest:
            refused += 1
            COUNTS.pack_into(shared, 0, dispatched, refused, surprises)
            raise

    def counted_dispatch(
        self: Dispatcher, session: Session, frame: memoryview, arrived_ms: int
    ) -> PendingResponse | None:
        nonlocal dispatched, surprises
        dispatched += frame != PROBE
        try:
            return dispatch(self, session, frame, arrived_ms)
        finally:
            surprises = self.surprises
            COUNTS.pack_into(shared, 0, dispatched, refused, surprises)

    ReceiveBuffer.next_frame = counted_frame  # type: ignore[method-assign]  # counted
    Dispatcher.dispatch = counted_dispatch  # type: ignore[method-assign]  # counted


if __name__ == "__main__":
    count(Path(sys.argv.pop(1)))
    sys.exit(main())
