"""What became of records that a producer was given: acknowledged, or the first failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.cli.console.output import ProgressDisplay

if TYPE_CHECKING:
    import asyncio

    from kbroker.client.producer import RecordMetadata


class Deliveries:
    """Counts acknowledgements on a progress bar."""

    def __init__(self, done: ProgressDisplay) -> None:
        self._done = done
        self._failure: BaseException | None = None

    def watch(
        self,
        future: asyncio.Future[RecordMetadata],
        acknowledged: Callable[[], None] | None = None,
    ) -> None:
        """Count a record once it is acknowledged. acknowledged: called then."""

        def arrived(future: asyncio.Future[RecordMetadata]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._failure = self._failure or error
                return
            self._done.advance()
            if acknowledged is not None:
                acknowledged()

        future.add_done_callback(arrived)

    @property
    def has_failed(self) -> bool:
        """Whether any record has failed."""
        return self._failure is not None

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self._failure is not None:
            raise self._failure
