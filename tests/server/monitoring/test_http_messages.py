"""As much of HTTP as scrapers need: what is taken, what is refused, what is answered."""

from __future__ import annotations

import pytest

from kbroker.server.monitoring.http_messages import (
    HttpRefusal,
    HttpRequest,
    HttpStatus,
    chunk,
    parse_request,
    response_head,
)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", HttpRequest("/", True, True), id="get"),
        pytest.param(
            b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            HttpRequest("/metrics", False, True),
            id="head",
        ),
        pytest.param(
            b"GET /metrics?name[]=up&x HTTP/1.1\r\n\r\n",
            HttpRequest("/metrics", True, True),
            id="query",
        ),
        pytest.param(b"GET /a HTTP/1.0\r\n\r\n", HttpRequest("/a", True, False), id="1.0"),
        pytest.param(b"GET /\xff HTTP/1.1\r\n\r\n", HttpRequest("/\xff", True, True), id="bytes"),
    ],
)
def test_requests(head: bytes, expected: HttpRequest) -> None:
    assert parse_request(head) == expected


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", HttpStatus.METHOD_NOT_ALLOWED, id="post"),
        pytest.param(b"get / HTTP/1.1\r\n\r\n", HttpStatus.METHOD_NOT_ALLOWED, id="lower case"),
        pytest.param(b"\0\0\0\x10\0\x12\r\n\r\n", HttpStatus.BAD_REQUEST, id="Kafka"),
        pytest.param(b"\r\n\r\n", HttpStatus.BAD_REQUEST, id="empty"),
        pytest.param(b"GET /\r\n\r\n", HttpStatus.BAD_REQUEST, id="HTTP/0.9"),
        pytest.param(b"GET / HTTP/2\r\n\r\n", HttpStatus.BAD_REQUEST, id="HTTP/2"),
        pytest.param(b"GET x HTTP/1.1\r\n\r\n", HttpStatus.BAD_REQUEST, id="no path"),
        pytest.param(b"GET /a b HTTP/1.1\r\n\r\n", HttpStatus.BAD_REQUEST, id="four words"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\n", HttpStatus.BAD_REQUEST, id="preface"),
    ],
)
def test_what_is_refused(head: bytes, status: HttpStatus) -> None:
    with pytest.raises(HttpRefusal) as refused:
        parse_request(head)
    assert refused.value.status is status


def test_heads() -> None:
    known = response_head(HttpStatus.OK, "text/plain", length=7)
    assert known.startswith(b"HTTP/1.1 200 OK\r\n") and known.endswith(b"\r\n\r\n")
    assert b"\r\nContent-Length: 7\r\n" in known
    chunked = response_head(HttpStatus.OK, "text/plain", length=None, is_chunked=True)
    assert b"\r\nTransfer-Encoding: chunked\r\n" in chunked
    until_the_end = response_head(HttpStatus.OK, "text/plain", length=None)
    assert b"Length" not in until_the_end and b"Encoding" not in until_the_end
    refused = response_head(HttpStatus.METHOD_NOT_ALLOWED, "text/plain", length=0)
    assert b"\r\nAllow: GET, HEAD\r\n" in refused


@pytest.mark.parametrize("status", list(HttpStatus))
def test_every_status_has_a_reason(status: HttpStatus) -> None:
    line = response_head(status, "text/plain", length=0).split(b"\r\n", 1)[0]
    assert line.split(b" ", 2)[1] == b"%d" % status
    assert len(line.split(b" ", 2)[2]) > 1


def test_chunks() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert chunk(b"") == b"0\r\n\r\n"
