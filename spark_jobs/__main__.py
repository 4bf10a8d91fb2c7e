"""`python -m spark_jobs JOB ...`, and the file to hand to spark-submit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # spark-submit runs this file by its path: the package is then found beside it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from spark_jobs import archive
from spark_jobs.java import java_problem
from spark_jobs.session import JobError, connector_package, started_by_spark_submit


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run the job. Returns the exit code: 1 with one line for what the
    user can mend.
    """
    parser = argparse.ArgumentParser(
        prog="spark_jobs", description="PySpark jobs over Kafka topics."
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    archive.add_arguments(
        jobs.add_parser(
            "archive", help="topics to Parquet, exactly once", description=archive.__doc__
        )
    )
    jobs.add_parser(
        "packages",
        help="print the Kafka connector for the installed pyspark (for spark-submit --packages)",
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.job == "packages":
            print(connector_package())
            return 0
        problem = None if started_by_spark_submit() else java_problem()
        if problem is not None:
            raise JobError(problem)
        return archive.run(arguments)
    except JobError as error:
        print(f"spark_jobs: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
