"""What the broker knows of one connection's client. `network/connection` makes it, the handlers
read it through their `RequestContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kbroker.model import ClientIdentity


class ApiVersionRange(NamedTuple):
    """One line of ApiVersions, both ends inclusive."""

    api_key: int
    min_version: int
    max_version: int


def no_connection(milliseconds: int) -> None:
    """`Session.mute` where there is no connection that could be muted."""


class Session(msgspec.Struct):
    """One per connection; all requests on the connection share it. A request in an Envelope has one
    of its own, with the principal and the address of the client whose broker forwarded it.

    connection_id: unique in the life of the process, also across reconnects. principal: its type
    and its name. is_token_authenticated: by a delegation token. client_software_*: as the client's
    ApiVersions request says (KIP-511), "unknown" before that. mute: start no further request of the
    connection for so many ms (KIP-219). is_follower: a broker fetches as a follower. is_forwarded:
    its requests come from a broker, which has checked them as far as a broker does.
    """

    connection_id: str = ""
    listener_name: str = "PLAINTEXT"
    client_host: str = "127.0.0.1"
    principal: str = "User:ANONYMOUS"
    is_token_authenticated: bool = False
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    mute: Callable[[int], None] = no_connection
    is_follower: bool = False
    is_forwarded: bool = False
    api_versions: Callable[[], Sequence[ApiVersionRange]] = tuple
    """What ApiVersions announces on this type of listener (`Dispatcher.api_versions`)."""

    @property
    def user(self) -> str:
        """The name of the principal, to which quotas are assigned."""
        return self.principal.partition(":")[2]

    def identity(self, client_id: str | None) -> ClientIdentity:
        """The client as the active controller is told of it. client_id: of the request."""
        return ClientIdentity(
            self.principal, self.client_host, self.is_token_authenticated, client_id
        )
