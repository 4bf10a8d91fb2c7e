"""The server's side of a connection, without I/O: request frames in, responses out in their order,
as a broker answers. For peers of a channel and for simulated nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

from kbroker.client.channel.streams import Stream
from kbroker.protocol.apis import APIS, ApiKey, request_class, valid_versions
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.framing import RequestHeader, decode_request_header, encode_response_frame
from kbroker.protocol.messages.api_versions import ApiVersionsResponse

Serve = Callable[["ServerConnection", RequestHeader, Request], None]
"""Called with each request, which it answers by `ServerConnection.answer`, now or later."""

Refuse = Callable[[RequestHeader], Response | None]
"""Called before a request is decoded; the response, in version 0, to one that cannot be."""


def api_versions(
    supported: dict[int, tuple[int, int]], error_code: int = 0, kraft_versions: int = 1
) -> ApiVersionsResponse:
    """The announcement of those versions, and of kraft.version 0 to kraft_versions."""
    feature = ApiVersionsResponse.SupportedFeatureKey(
        name="kraft.version", min_version=0, max_version=kraft_versions
    )
    return ApiVersionsResponse(
        error_code=error_code,
        supported_features=[feature],
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in supported.items()
        ],
    )


ALL_VERSIONS = {int(key): valid_versions(key) for key in APIS if key in set(ApiKey)}


class ServerConnection:
    """One connection. lost: why it was closed by the other side; lost_callback: called then."""

    def __init__(
        self,
        stream: Stream,
        serve: Serve,
        *,
        refuse: Refuse = lambda header: None,
        lost_callback: Callable[[ServerConnection], None] = lambda connection: None,
    ) -> None:
        self.stream = stream
        self.lost: str | None = None
        self._serve = serve
        self._refuse = refuse
        self._lost_callback = lost_callback
        self._received = bytearray()
        self._waiting: deque[tuple[RequestHeader, list[bytes]]] = deque()

    def connected(self) -> None:
        """Nothing: the client sends first."""

    def data_received(self, data: bytes) -> None:
        """Serve the requests that are complete."""
        received = self._received
        received += data
        while len(received) >= 4:
            size = int.from_bytes(received[:4], "big")
            if len(received) < 4 + size:
                return
            frame = bytes(received[4 : 4 + size])
            del received[: 4 + size]
            self._request(frame)

    def _request(self, frame: bytes) -> None:
        header = decode_request_header(frame)
        self._waiting.append((header, []))
        refusal = self._refuse(header)
        if refusal is not None:
            self.answer(header, refusal, version=0)
            return
        kind = request_class(header.api_key)
        request, end = decode(kind, frame, header.api_version, header.body_position)
        assert end == len(frame)
        self._serve(self, header, cast(Request, request))

    def connection_lost(self, reason: str) -> None:
        """The client has disconnected."""
        self.lost = reason
        self._lost_callback(self)

    def answer(self, header: RequestHeader, response: Response, version: int | None = None) -> None:
        """Answer a request; the response leaves after those to earlier requests."""
        parts = encode_response_frame(
            header.api_key,
            header.api_version if version is None else version,
            header.correlation_id,
            response,
        )
        data = b"".join(bytes(cast(bytes, part)) for part in parts)
        for waiting, answers in self._waiting:
            if waiting is header:
                answers.append(data)
        while self._waiting and self._waiting[0][1]:
            self.send(self._waiting.popleft()[1][0])

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.stream.write(data)
