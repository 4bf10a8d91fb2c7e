"""The requests of a simulated cluster without a response, as the network sees them: those of
clients, brokers and controllers.

Both directions of a connection are frames of Kafka's protocol. A server answers the requests of a
connection in order, so each response belongs to the oldest request. A request whose connection has
ended is removed. Requests that get no response (Produce with acks=0) would count as unanswered; no
simulated client sends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from kbroker.protocol.apis import ApiKey

_LENGTH: Final = Struct(">i")
_API_KEY: Final = Struct(">h")
_NO_FRAME: Final = 1 << 62
"""Used instead of an invalid frame length: the following bytes are ignored."""


class UnansweredRequest(NamedTuple):
    """api_key: as in its header. sent_s: when its last byte was written, in simulated time. source,
    target: the node ids of both processes.
    """

    api_key: int
    sent_s: float
    source: int
    target: int

    def __str__(self) -> str:
        name = ApiKey(self.api_key).name
        return f"{name} from {self.source} to {self.target}, sent at {self.sent_s:.3f}"


class _Frames:
    """Splits the bytes of one direction into frames, of which it keeps only the first bytes."""

    __slots__ = ("_begun", "_left")

    def __init__(self) -> None:
        self._begun = bytearray()
        self._left = 0
        """How many bytes of the current frame are missing; 0: its length is incomplete."""

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield the first bytes (at least the API key) of each frame that data completes."""
        position = 0
        while position < len(data):
            if not self._left:
                wanted = _LENGTH.size - len(self._begun)
                self._begun += data[position : position + wanted]
                position += wanted
                if len(self._begun) == _LENGTH.size:
                    length = _LENGTH.unpack(self._begun)[0]
                    self._left = length if length >= _API_KEY.size else _NO_FRAME
                    self._begun.clear()
                continue
            wanted = _API_KEY.size - len(self._begun)
            if wanted > 0:
                self._begun += data[position : position + min(wanted, self._left)]
            taken = min(self._left, len(data) - position)
            position += taken
            self._left -= taken
            if not self._left:
                beginning = bytes(self._begun)
                self._begun.clear()
                yield beginning


class Conversation:
    """One connection. source, target: node ids of the connecting and of the listening process."""

    __slots__ = ("_requests", "_responses", "_source", "_target", "last_asked_s", "unanswered")

    def __init__(self, source: int, target: int) -> None:
        self.unanswered: deque[UnansweredRequest] = deque()
        """The unanswered requests, oldest first."""
        self.last_asked_s: dict[int, float] = {}
        """By API key, the time of the last request."""
        self._source = source
        self._target = target
        self._requests = _Frames()
        self._responses = _Frames()

    def asked(self, data: bytes, now_s: float) -> None:
        """Bytes of requests were written."""
        for beginning in self._requests.take(data):
            (api_key,) = _API_KEY.unpack_from(beginning)
            self.last_asked_s[api_key] = now_s
            self.unanswered.append(UnansweredRequest(api_key, now_s, self._source, self._target))

    def answered(self, data: bytes) -> None:
        """Bytes of responses were written."""
        for _ in self._responses.take(data):
            if self.unanswered:
                self.unanswered.popleft()
