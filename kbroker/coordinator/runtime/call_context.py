"""The request context that coordinators read, besides the request itself."""

from __future__ import annotations

from typing import Protocol


class CallContext(Protocol):
    """The client and the API version of a request; the dispatcher's RequestContext is one."""

    @property
    def api_version(self) -> int: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def client_host(self) -> str: ...
