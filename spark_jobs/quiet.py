"""What py4j and pyspark print when the Java process of a session has ended: some hundred lines of
traces from several threads, before the job says why it ended in one.
"""

from __future__ import annotations

import logging
import socketserver
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "py4j"


def _is_ours(record: logging.LogRecord) -> bool:
    """py4j logs some of its traces with the root logger."""
    return PACKAGE not in (record.name.partition(".")[0], Path(record.pathname).parent.name)


@contextmanager
def without_traces_of_java() -> Iterator[None]:
    """Nothing that py4j logs is printed in this block, unless the program has set up logging; other
    warnings are, as without a set-up. Nor is the trace of pyspark's server for accumulators.
    """
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.addFilter(_is_ours)
    root.addHandler(handler)
    before = socketserver.BaseServer.handle_error

    def handle_error(server: Any, request: Any, client_address: Any) -> None:
        if not type(server).__module__.startswith("pyspark."):
            before(server, request, client_address)

    socketserver.BaseServer.handle_error = handle_error  # type: ignore[method-assign, assignment]  # pyspark has no hook for it
    try:
        yield
    finally:
        socketserver.BaseServer.handle_error = before  # type: ignore[method-assign]  # as above
        root.removeHandler(handler)
