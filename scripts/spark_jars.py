"""Bring Spark's Kafka connector into Ivy's cache, by starting Spark once where it isn't there yet;
with --tables also the packages of Delta Lake and Iceberg. The tests' time limits are not made for
that.

    python scripts/spark_jars.py [--tables]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spark_jobs.errors import JobError  # noqa: E402
from spark_jobs.ivy_cache import has_packages  # noqa: E402
from spark_jobs.lake.formats import FORMATS, PACKAGES, with_lake  # noqa: E402
from spark_jobs.session import open_session  # noqa: E402
from spark_jobs.spark_conf import connector_package  # noqa: E402

ATTEMPTS = 3
"""A repository may refuse one request among hundreds."""


def main() -> int:
    tables = with_lake({}, *FORMATS.values()) if "--tables" in sys.argv[1:] else {}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if not has_packages({PACKAGES: connector_package()} | tables):
                with open_session("connector", tables):
                    pass
            return 0
        except JobError as error:
            print(f"spark_jars: attempt {attempt} of {ATTEMPTS}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
