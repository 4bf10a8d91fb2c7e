"""As much of HTTP/1.1 (RFC 9112) as a scraper and a probe need: one request per connection, without
a body. No I/O.

A response that is made while it is sent is chunked: a client sees whether it has all of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a request's line and headers together."""

PLAIN_TEXT: Final = "text/plain; charset=utf-8"


class HttpStatus(IntEnum):
    """The status codes that are answered."""

    OK = 200
    BAD_REQUEST = 400
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    HEAD_TOO_LARGE = 431
    UNAVAILABLE = 503


_REASONS: Final = (
    (HttpStatus.OK, "OK"),
    (HttpStatus.BAD_REQUEST, "Bad Request"),
    (HttpStatus.NOT_FOUND, "Not Found"),
    (HttpStatus.METHOD_NOT_ALLOWED, "Method Not Allowed"),
    (HttpStatus.HEAD_TOO_LARGE, "Request Header Fields Too Large"),
    (HttpStatus.UNAVAILABLE, "Service Unavailable"),
)


class HttpRequest(NamedTuple):
    """path: without the query. wants_body: False for HEAD. takes_chunks: False for HTTP/1.0, where
    the end of the connection is that of the response.
    """

    path: str
    wants_body: bool
    takes_chunks: bool


class HttpRefusal(Exception):
    """A request that gets no more than a status."""

    def __init__(self, status: HttpStatus) -> None:
        super().__init__(status.name)
        self.status = status


def parse_request(head: bytes) -> HttpRequest:
    """head: a request up to the empty line after its headers, which are not looked at. Raises
    HttpRefusal.
    """
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
        raise HttpRefusal(HttpStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in (b"GET", b"HEAD"):
        raise HttpRefusal(HttpStatus.METHOD_NOT_ALLOWED)
    path = target.partition(b"?")[0].decode("latin-1")
    return HttpRequest(path, wants_body=method == b"GET", takes_chunks=words[2] != b"HTTP/1.0")


def response_head(
    status: HttpStatus, content_type: str, *, length: int | None, is_chunked: bool = False
) -> bytes:
    """length: of the body in bytes; None if it is not known yet."""
    reason = dict(_REASONS)[status]
    lines = [
        f"HTTP/1.1 {status.value} {reason}",
        f"Content-Type: {content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    elif is_chunked:
        lines.append("Transfer-Encoding: chunked")
    if status is HttpStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    """A part of a chunked body; the last one is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
