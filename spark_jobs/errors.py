"""The errors that end a job with one line on standard error, and their exit codes."""

from __future__ import annotations

import os
import re
from contextlib import suppress


class JobError(Exception):
    """A problem that the user can fix, reported in one line; exit code 1."""

    exit_code = 1


class StartRefused(JobError):
    """Output, checkpoint and cluster contradict each other: going on would lose or repeat records.

    The message says how many and which options decide; exit code 2.
    """

    exit_code = 2


def _kinds(kind: type[JobError] = JobError) -> dict[str, type[JobError]]:
    """JobError and all classes below it that are imported, by name."""
    found = {kind.__name__: kind}
    for below in kind.__subclasses__():
        found |= _kinds(below)
    return found


_PYTHON_TRACE = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_DELETED_UNREAD = re.compile(
    r"OffsetOutOfRangeException: .*?\boffset=(\d+).* out of range for partition (\S+)"
)


def _text(error: BaseException) -> str:
    """str(error); py4j asks Java for it, which may have ended since."""
    with suppress(Exception):  # py4j's, or its socket's
        return str(error)
    return f"Java has ended ({type(error).__name__})"


def _last_raised(text: str) -> tuple[str, str] | None:
    """Name and message of the last error in a Python trace; None if the text has none."""
    _, is_python, trace = text.partition(_PYTHON_TRACE)
    raised = [
        (name, message)
        for name, message in (_PYTHON_ERROR.findall(trace) if is_python else [])
        if name.endswith(("Error", "Exception")) or name in _kinds()
    ]
    return raised[-1] if raised else None


def job_error_in(error: BaseException) -> JobError | None:
    """The JobError that a Python process of Spark raised, out of the trace in Spark's own error."""
    raised = _last_raised(_text(error))
    kind = None if raised is None else _kinds().get(raised[0])
    return None if raised is None or kind is None else kind(raised[1])


def first_cause(error: BaseException) -> str:
    """The line that names the cause of a failure in Java or in a Python worker, at most 500
    characters; all of it with SPARK_JOBS_TRACE set.
    """
    text = _text(error)
    if os.environ.get("SPARK_JOBS_TRACE"):
        return text
    raised = _last_raised(text)
    if raised is not None:
        name, message = raised
        if "No module named" in message:
            return f"{message} in Spark's Python workers: install it on the executors too"
        return f"{name}: {message}"[:500]
    deleted = _DELETED_UNREAD.search(text)
    if deleted is not None:
        offset, partition = deleted.groups()
        return (
            f"{partition} has no offset {offset} any more: records were deleted before they were "
            "read. The next start says how many, and which options go on behind them"
        )
    causes = [line.strip() for line in text.splitlines() if "Caused by:" in line]
    lines = text.strip().splitlines() or [type(error).__name__]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0])[:500]
