"""Ivy's cache, into which Spark brings packages, and who may write there.

Ivy doesn't lock its cache: of two sessions that begin at once where the connector was never used,
one sees the half-written files of the other and doesn't start.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_in_use", "has_packages"]

SETTING = "spark.jars.ivy"
DEFAULT_FOLDER = ".ivy2.5.2"
"""Of Spark 4, in the home directory."""
LOCK = ".spark-jobs.lock"


@contextmanager
def cache_in_use(settings: Mapping[str, str]) -> Iterator[None]:
    """Hold the cache while Spark starts: alone where packages are still to be fetched, else
    together with others that have theirs. Waits while another process holds it.

    settings: `spark.*` by name, of which spark.jars.ivy and spark.jars.packages count
    (group:artifact:version, separated by commas). Where the folder can't be written Spark is left
    to say so.
    """
    folder = _folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH if has_packages(settings) else fcntl.LOCK_EX)
        yield


def has_packages(settings: Mapping[str, str]) -> bool:
    """Whether the cache has all packages that the settings name; what these need in turn is not
    looked at.
    """
    jars = _folder(settings) / "jars"
    names = (name.strip() for name in settings.get("spark.jars.packages", "").split(","))
    return all((jars / _jar(name)).exists() for name in names if name)


def _folder(settings: Mapping[str, str]) -> Path:
    return Path(settings.get(SETTING) or Path.home() / DEFAULT_FOLDER)


def _jar(package: str) -> str:
    """The name that Spark gives to a package's jar in the cache's folder `jars`."""
    group, _, rest = package.partition(":")
    return f"{group}_{rest.replace(':', '-')}.jar"
