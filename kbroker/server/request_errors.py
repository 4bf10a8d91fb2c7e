"""Counts of the requests that were answered with an error as a whole, for the metrics.

`dispatch` counts what its handlers refuse, `forwarding` what it answers in place of the active
controller. A controller counts the requests that brokers forward to it separately from the
Envelopes around them, which succeed.
"""

from __future__ import annotations

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode


class RequestErrors:
    """counts: by API key and error code. surprises: unexpected exceptions."""

    __slots__ = ("counts", "surprises")

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.surprises = 0

    def count(self, api_key: ApiKey, code: ErrorCode) -> None:
        """A request was answered with this error."""
        counted = int(api_key), int(code)
        self.counts[counted] = self.counts.get(counted, 0) + 1
