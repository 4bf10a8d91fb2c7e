"""`kbroker jobs` and `kbroker spark-conf`: the Spark pack, which is a package of its own.

It is `kbroker_spark_jobs` where kbroker is installed and `spark_jobs` in a checkout; its arguments
are its own, so they are passed on as they are.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from kbroker.model import StartupError

PACKAGES: Final = ("kbroker_spark_jobs", "spark_jobs")

PASSED_ON: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,  # what follows the job's name is the job's
}

JOBS_EPILOG = """
\b
Examples:
  kbroker jobs archive -h
  kbroker jobs archive -c orders.properties
  kbroker jobs check archive -c orders.properties
  kbroker jobs lag --checkpoint checkpoints/ --group reports
  kbroker jobs groups-audit --group reports
  kbroker jobs restore --archive archive/ --to orders-copy
  kbroker jobs dedupe --topic orders --to orders-once --checkpoint dedupe/
  kbroker jobs translate --group reports --to-bootstrap-servers other:9092
  kbroker jobs bundle spark_jobs.zip
"""

SPARK_CONF_EPILOG = """
\b
Examples:
  kbroker spark-conf
  kbroker spark-conf --packages
  kbroker spark-conf --format delta
"""


class TableFormat(StrEnum):
    """The formats of tables that the pack knows, without importing it."""

    DELTA = "delta"
    ICEBERG = "iceberg"


def run_pack(arguments: list[str], program: str) -> int:
    """Run a command line of the pack. Returns its exit code. Raises StartupError without it."""
    for name in PACKAGES:
        if find_spec(name) is not None:
            code: int = import_module(f"{name}.cli").main(arguments, program)
            return code
    raise StartupError("the Spark jobs are not installed: install kbroker with its extra spark")


app = typer.Typer(add_completion=False, rich_markup_mode=None)
spark_conf_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("jobs", epilog=JOBS_EPILOG, context_settings=PASSED_ON)
def run_job(context: typer.Context) -> None:
    """Run PySpark jobs: archive, restore, dedupe, lag, ..."""
    if not context.args:
        print(context.get_help())
        return
    raise typer.Exit(run_pack(context.args, "kbroker jobs"))


@spark_conf_app.command("spark-conf", epilog=SPARK_CONF_EPILOG)
def print_spark_conf(
    packages: Annotated[
        bool, typer.Option("--packages", help="Only the packages' coordinates.")
    ] = False,
    submit: Annotated[bool, typer.Option("--submit", help="As arguments of spark-submit.")] = False,
    table_format: Annotated[
        TableFormat | None,
        typer.Option("--format", help="For jobs that write tables of this format."),
    ] = None,
) -> None:
    """Print packages and options for the installed pyspark."""
    chosen = {"--packages": packages, "--submit": submit}
    options = [option for option, is_given in chosen.items() if is_given]
    if table_format is not None:
        options += ["--format", table_format.value]
    raise typer.Exit(run_pack(["spark-conf", *options], "kbroker"))
