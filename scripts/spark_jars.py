"""Bring Spark's Kafka connector into Ivy's cache, by starting Spark once where it isn't there yet.
The tests' time limits are not made for that.

    python scripts/spark_jars.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spark_jobs.errors import JobError  # noqa: E402
from spark_jobs.ivy_cache import has_packages  # noqa: E402
from spark_jobs.session import open_session  # noqa: E402
from spark_jobs.spark_conf import connector_package  # noqa: E402

ATTEMPTS = 3
"""A repository may refuse one request among hundreds."""


def main() -> int:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if not has_packages({"spark.jars.packages": connector_package()}):
                with open_session("connector"):
                    pass
            return 0
        except JobError as error:
            print(f"spark_jars: attempt {attempt} of {ATTEMPTS}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
