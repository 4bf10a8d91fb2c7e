"""The command line: `python -m spark_jobs JOB`, `kbroker jobs JOB`, and spark-submit's.

A mistake is one line on standard error. Exit codes: 0 also after Ctrl-C and SIGTERM, which end the
batch; 130 and 143 after them where a job has begun no batch or has none; 1 where the job cannot
run; 2 where a start would lose or repeat records, or for arguments that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from . import archive, bundle, spark_conf
from .archive.job import describe_check
from .archive.options import ARCHIVE_OPTIONS, archive_options
from .archive.tables import refuse_decoded
from .commands import COMMANDS, Command
from .compact.options import COMPACT_OPTIONS, compact_options
from .errors import JobError
from .exactly_once.options import SINK_OPTIONS, sink_check
from .groups_audit.options import AUDIT_OPTIONS, audit_options
from .java import java_problem
from .lag.options import LAG_OPTIONS, lag_options
from .lake.formats import FORMATS, PACKAGES, LakeFormat, with_lake
from .metrics import Metrics, parse_port, serving
from .options import add_options, collect
from .progress import Reporter, Style
from .running import Terminated, interrupted_by_sigterm, stop_on_signals
from .session import open_session, started_by_spark_submit, uses_server
from .storage import Folder, absolute
from .translate.options import TRANSLATE_OPTIONS, translate_options
from .verify.options import VERIFY_OPTIONS, verify_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .archive import ArchiveOptions

PROGRAM = "spark_jobs"

ARCHIVE_EXAMPLES = """
examples:
  everything there is now, then stop:
    python -m spark_jobs archive --topics orders,payments --output archive/
  keep going, a batch every minute:
    python -m spark_jobs archive --topics orders --output archive/ --every '1 minute'
  options from a file, as a secret must be:
    python -m spark_jobs archive --config orders.properties
  what a start would do:
    python -m spark_jobs check archive --config orders.properties
  on a cluster:
    python -m spark_jobs bundle
    spark-submit --packages "$(python -m spark_jobs spark-conf --packages)" \\
      --py-files spark_jobs.zip spark_jobs/__main__.py archive --config orders.properties
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(2, f"{self.prog}: {message}. See: {self.prog} --help\n")


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The arguments of all jobs."""
    top = _Parser(prog=program, description="PySpark jobs over Kafka topics.", allow_abbrev=False)
    jobs = top.add_subparsers(dest="job", required=True, metavar="JOB")
    _add_archive(jobs.add_parser("archive", help="topics to Parquet or a table, each record once"))
    verified = jobs.add_parser("verify", help="whether a topic is whole, and a copy of it equal")
    _add_verify(verified)
    _add_lag(jobs.add_parser("lag", help="how far queries are behind, by partition"))
    audited = jobs.add_parser("groups-audit", help="who committed what, and stuck transactions")
    _add_audit(audited)
    for command in COMMANDS.values():
        _add_command(jobs.add_parser(command.name, help=command.help), command)
    translated = jobs.add_parser("translate", help="a group's offsets in a copy of its topics")
    _add_translate(translated)
    _add_compact(jobs.add_parser("compact", help="small files of an archive or table into few"))
    checked = jobs.add_parser("check", help="what a start of a job would do, without a change")
    of_job = checked.add_subparsers(dest="checked_job", required=True, metavar="JOB")
    _add_archive(of_job.add_parser("archive", help="the start of archive"))
    _add_verify(of_job.add_parser("verify", help="what verify would read"))
    _add_compact(of_job.add_parser("compact", help="what compact would merge"))
    _add_sink(of_job.add_parser("kafka-sink", help="the start of a query with kafka_sink"))
    for command in COMMANDS.values():
        _add_command(of_job.add_parser(command.name, help=f"the start of {command.name}"), command)
    bundled = jobs.add_parser("bundle", help="write the pack as a zip for spark-submit --py-files")
    bundled.add_argument("path", nargs="?", default=bundle.DEFAULT_NAME)
    conf = jobs.add_parser(
        "spark-conf", help="print packages and options for the installed pyspark"
    )
    form = conf.add_mutually_exclusive_group()
    form.add_argument("--packages", action="store_true", help="only the packages' coordinates")
    form.add_argument("--submit", action="store_true", help="as arguments of spark-submit")
    conf.add_argument(
        "--format", choices=tuple(FORMATS), help="for jobs that write tables of this format"
    )
    return top


def _add_archive(job: argparse.ArgumentParser) -> None:
    job.formatter_class = argparse.RawDescriptionHelpFormatter
    job.description = archive.__doc__
    job.epilog = ARCHIVE_EXAMPLES
    job.allow_abbrev = False
    add_options(job, ARCHIVE_OPTIONS)
    _add_run_arguments(job)


def _add_run_arguments(job: argparse.ArgumentParser) -> None:
    """Of the jobs that run batches."""
    job.add_argument("--master", help="of the session (default: local[*])")
    job.add_argument("--json", action="store_true", help="print the summary as one line of JSON")
    job.add_argument(
        "--progress",
        choices=("auto", "line", "json", "none"),
        default="auto",
        help="of each batch, on standard error (default: a line in a terminal, else none)",
    )
    job.add_argument(
        "--metrics-port",
        metavar="PORT",
        help="serve counts of rows, files and lag at /metrics for Prometheus",
    )


def _add_command(job: argparse.ArgumentParser, command: Command) -> None:
    job.description = command.description
    job.allow_abbrev = False
    add_options(job, command.options)
    _add_run_arguments(job)


def _add_translate(job: argparse.ArgumentParser) -> None:
    job.description = (
        "The offsets of a consumer group in a copy of its topics, by the copy's offset map: the "
        "group goes on there without a gap or a repeat. Without Spark; prints, and commits with "
        "--execute."
    )
    job.allow_abbrev = False
    add_options(job, TRANSLATE_OPTIONS)
    job.add_argument("--execute", action="store_true", help="commit the offsets")
    job.add_argument("--json", action="store_true", help="print the report as one line of JSON")


def _add_compact(job: argparse.ArgumentParser) -> None:
    job.description = (
        "Small files of an archive into few, while archive and readers go on; of a table by the "
        "format's own means. With --retention old records are deleted. Files of Parquet need "
        "neither Spark nor Java."
    )
    job.allow_abbrev = False
    add_options(job, COMPACT_OPTIONS)
    job.add_argument("--master", help="of the session (default: local[*])")
    job.add_argument("--json", action="store_true", help="print the report as one line of JSON")


def _add_verify(job: argparse.ArgumentParser) -> None:
    job.description = (
        "A topic by itself, or against a copy of it (a topic, an archive): records, ranges, "
        "missing offsets, duplicates and hashes per partition. Exit code 1 if anything differs."
    )
    job.allow_abbrev = False
    add_options(job, VERIFY_OPTIONS)
    job.add_argument("--master", help="of the session (default: local[*])")
    job.add_argument("--json", action="store_true", help="print the report as one line of JSON")


def _add_lag(job: argparse.ArgumentParser) -> None:
    job.description = (
        "How far queries are behind: next offset, end, lag and the age of the first record that is "
        "not read, by topic and partition. Without Spark; a query may run meanwhile."
    )
    job.allow_abbrev = False
    add_options(job, LAG_OPTIONS)
    job.add_argument("--json", action="store_true", help="print the report as one line of JSON")


def _add_audit(job: argparse.ArgumentParser) -> None:
    job.description = (
        "Offset commits out of __consumer_offsets with their time, who made them and the lag then, "
        "and stuck transactions out of __transaction_state. Exit code 1 if one is stuck. Without "
        "Spark; changes nothing."
    )
    job.allow_abbrev = False
    add_options(job, AUDIT_OPTIONS)
    job.add_argument("--json", action="store_true", help="print the report as one line of JSON")


def _add_sink(job: argparse.ArgumentParser) -> None:
    job.description = (
        "Topics, the topic of tokens, the checkpoint and the group of a query that writes with "
        "kafka_sink: whether they fit together, and which batch is next. Exit code 2 if not."
    )
    job.allow_abbrev = False
    add_options(job, SINK_OPTIONS)


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run a command line (sys.argv by default). Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments, rest = parser(program).parse_known_args(_joined(words))
    try:
        with interrupted_by_sigterm():
            return _run(arguments, rest)
    except JobError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        print(f"{program}: interrupted", file=sys.stderr)
        return 143 if isinstance(error, Terminated) else 130


def _joined(words: list[str]) -> list[str]:
    """`dlq retry` as the name of one job. A second positional argument would take the value of
    `--kafka.name value`, which argparse does not know.
    """
    at = 1 if words[:1] == ["check"] else 0
    if words[at : at + 2] == ["dlq", "retry"]:
        return [*words[:at], "dlq-retry", *words[at + 2 :]]
    return words


def _run(arguments: argparse.Namespace, rest: list[str]) -> int:
    if arguments.job in ("bundle", "spark-conf"):
        if rest:
            raise JobError(f"unknown option {rest[0]}")
        return _bundle(arguments.path) if arguments.job == "bundle" else _spark_conf(arguments)
    if arguments.job == "verify":
        return _verify(arguments, collect(VERIFY_OPTIONS, arguments, rest))
    if arguments.job == "lag":
        return _lag(arguments, collect(LAG_OPTIONS, arguments, rest))
    if arguments.job == "groups-audit":
        return _audit(arguments, collect(AUDIT_OPTIONS, arguments, rest))
    if arguments.job == "translate":
        return _translate(arguments, collect(TRANSLATE_OPTIONS, arguments, rest))
    if arguments.job == "compact":
        return _compact(arguments, collect(COMPACT_OPTIONS, arguments, rest))
    if arguments.job == "check":
        print(_checked(arguments, rest))
        return 0
    if arguments.job in COMMANDS:
        command = COMMANDS[arguments.job]
        return _command(arguments, command, collect(command.options, arguments, rest))
    values = collect(ARCHIVE_OPTIONS, arguments, rest)
    options = archive_options(values)
    formats = (options.lake,) if options.lake is not None else ()
    return _archive(arguments, options, _session_settings(arguments, values, *formats))


def _checked(arguments: argparse.Namespace, rest: list[str]) -> str:
    """What the start of a job would do, in one line."""
    if arguments.checked_job == "archive":
        return describe_check(archive_options(collect(ARCHIVE_OPTIONS, arguments, rest)))
    if arguments.checked_job in COMMANDS:
        command = COMMANDS[arguments.checked_job]
        return command.check(command.parse(collect(command.options, arguments, rest)))
    if arguments.checked_job == "compact":
        from .compact.job import describe_check as describe_compaction  # which needs pyarrow

        options = compact_options(collect(COMPACT_OPTIONS, arguments, rest))
        return describe_compaction(options, time.time_ns() // 1_000_000)
    if arguments.checked_job == "verify":
        return _checked_verify(collect(VERIFY_OPTIONS, arguments, rest))
    from .exactly_once.check import describe_sink_check  # as above

    return describe_sink_check(sink_check(collect(SINK_OPTIONS, arguments, rest)))


def _checked_verify(values: Mapping[str, str]) -> str:
    from .verify import archive as verify_archives  # which need kbroker's client
    from .verify import job as verify_job

    options, path = verify_options(values)
    if path is not None:
        verify_archives.archive_side(Folder(absolute(path)), options.topic.topic)
    return verify_job.describe_check(options, path)


def _session_settings(
    arguments: argparse.Namespace, values: Mapping[str, str], *formats: LakeFormat
) -> dict[str, str]:
    """Settings of the session, which writes tables of these formats. Raises JobError without a Java
    that Spark runs on.
    """
    settings = {name: value for name, value in values.items() if name.startswith("spark.")}
    has_java = started_by_spark_submit() or uses_server(settings)
    problem = None if has_java else java_problem()
    if problem is not None:
        raise JobError(problem)
    if arguments.master is not None:
        settings["spark.master"] = arguments.master
    return settings if "spark.remote" in settings else with_lake(settings, *formats)


def _bundle(path: str) -> int:
    count = bundle.write_bundle(Path(path))
    print(f"{path}: {count} modules, for spark-submit --py-files")
    return 0


def _spark_conf(arguments: argparse.Namespace) -> int:
    settings = spark_conf.settings(*(FORMATS[name] for name in (arguments.format,) if name))
    if arguments.packages:
        print(settings[PACKAGES])
    elif arguments.submit:
        print(spark_conf.submit_arguments(settings))
    else:
        print(spark_conf.properties(settings))
    return 0


class _Run(NamedTuple):
    """What a job that runs batches is given."""

    reporter: Reporter
    stop: threading.Event


@contextmanager
def _running(
    arguments: argparse.Namespace, application_name: str, settings: Mapping[str, str]
) -> Iterator[tuple[SparkSession, _Run]]:
    """A session, with the reports that were asked for, which signals stop. Raises JobError."""
    style, port = cast("Style", arguments.progress), arguments.metrics_port
    metrics = Metrics(arguments.job)
    with ExitStack() as stack:
        if port is not None:
            try:
                number = parse_port(port)
            except ValueError as error:
                raise JobError(f"--metrics-port {port}: {error}") from error
            stack.enter_context(serving(metrics, number))
        reporter = Reporter(style, record=metrics.record)
        reporter.say("starting Spark; the first start fetches its Kafka connector")
        run = _Run(reporter, threading.Event())
        spark = stack.enter_context(open_session(application_name, settings))
        stack.enter_context(stop_on_signals(run.stop))
        yield spark, run


def _archive(
    arguments: argparse.Namespace, options: ArchiveOptions, settings: Mapping[str, str]
) -> int:
    describe_check(options)  # before Spark takes its seconds
    with _running(arguments, f"archive {options.subscription}", settings) as (spark, run):
        summary = archive.archive(spark, options, reporter=run.reporter, stop=run.stop)
    for note in summary.notes:
        print(f"{PROGRAM}: {note}", file=sys.stderr)
    print(json.dumps(summary.to_json()) if arguments.json else summary.to_text(options))
    return 0


def _verify(arguments: argparse.Namespace, values: Mapping[str, str]) -> int:
    from .verify import archive as verify_archives  # which need kbroker's client
    from .verify import job as verify_job

    options, path = verify_options(values)
    if path is not None:
        refuse_decoded(Folder(absolute(path)), "compared with a topic")
        verify_archives.archive_side(Folder(absolute(path)), options.topic.topic)
    settings = _session_settings(arguments, values)
    verify_job.ranges_of(options.topic)  # before Spark takes its seconds
    with open_session(f"verify {options.topic.topic}", settings) as spark:
        if path is None:
            report = verify_job.verify(spark, options)
        else:
            report = verify_archives.verify_archive(spark, options, Folder(absolute(path)))
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return report.exit_code


def _lag(arguments: argparse.Namespace, values: Mapping[str, str]) -> int:
    from .lag import job as lag_job  # which needs kbroker's client

    report = lag_job.lag(lag_options(values))
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return 0


def _audit(arguments: argparse.Namespace, values: Mapping[str, str]) -> int:
    from .groups_audit.job import groups_audit  # which needs kbroker's client

    report = groups_audit(audit_options(values))
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return report.exit_code


def _compact(arguments: argparse.Namespace, values: Mapping[str, str]) -> int:
    from .compact.job import compact, lake_format  # which need pyarrow

    options, now_ms = compact_options(values), time.time_ns() // 1_000_000
    format_ = lake_format(options)
    if format_ is None:  # neither Spark nor Java is needed
        report = compact(None, options, now_ms)
    else:
        settings = _session_settings(arguments, values, format_)
        with open_session("compact", settings) as spark:
            report = compact(spark, options, now_ms)
    for note in report.notes:
        print(f"{PROGRAM}: {note}", file=sys.stderr)
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return 0


def _command(arguments: argparse.Namespace, command: Command, values: Mapping[str, str]) -> int:
    options = command.parse(values)
    settings = _session_settings(arguments, values, *command.formats(options))
    command.check(options)  # before Spark takes its seconds
    with _running(arguments, command.name, settings) as (spark, run):
        report = command.run(spark, options, run.reporter, run.stop)
    for note in report.notes:
        print(f"{PROGRAM}: {note}", file=sys.stderr)
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return 0


def _translate(arguments: argparse.Namespace, values: Mapping[str, str]) -> int:
    from .translate.job import translate  # which needs kbroker's client

    report = translate(translate_options(values), execute=arguments.execute)
    print(json.dumps(report.to_json()) if arguments.json else report.to_text())
    return 0
