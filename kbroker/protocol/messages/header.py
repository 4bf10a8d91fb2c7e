"""Request and response headers. ClientId stays a classic string in every version."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import Header, int16, int32, string


class RequestHeader(Header, versions="1-2", flexible="2+"):
    request_api_key: int = int16("0+")
    request_api_version: int = int16("0+")
    correlation_id: int = int32("0+")
    client_id: str | None = string("1+", nullable="1+", flexible="none")


class ResponseHeader(Header, versions="0-1", flexible="1+"):
    correlation_id: int = int32("0+")
