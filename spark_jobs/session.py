"""The Spark session of a job, with the Kafka connector that belongs to the installed pyspark.

Only pyspark's public API is used, so a job runs in a session of Spark Connect too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .bundle import bundle_path
from .errors import JobError, StartRefused
from .ivy_cache import cache_in_use
from .options import is_secret
from .quiet import without_traces_of_java
from .spark_conf import OPTIONS, connector_package, spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["JobError", "check_kafka_source", "open_session", "ship", "started_by_spark_submit"]

DEFAULT_MASTER = "local[*]"
DEFAULT_SHUFFLE_PARTITIONS = 200
SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""The environment variable from which pyspark takes more arguments of spark-submit."""


def started_by_spark_submit() -> bool:
    """Whether a JVM that spark-submit started is already waiting for us (its packages are then
    fixed).
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def open_session(
    application_name: str, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that can read Kafka; it ends with the block.

    settings: `spark.*` by name; `spark.master` is local[*] unless it or SPARK_MASTER says else.
    Under spark-submit its own --master and --packages hold; with `spark.remote` the session is one
    of Spark Connect. Raises JobError where Spark or the connector can't be had, and in place of a
    JobError of the block behind which Java had run out of memory.
    """
    given = dict(settings or {})
    if started_by_spark_submit():
        with _without_artifacts(Path.cwd()):
            spark = _session(application_name, given)
            try:
                yield spark
            finally:
                _stop(spark)
        return
    folder = tempfile.mkdtemp(prefix="spark-jobs-")
    own = _local_settings(given)
    if own.get("spark.master", "").startswith("local"):
        # Spark takes the python3 on the PATH otherwise, which may lack pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        with _started_in(folder) as log:
            try:
                with cache_in_use(own), _without_secrets(own, Path(folder)) as shown:
                    spark = _session(application_name, shown)
            except JobError as error:
                raise JobError(f"{error}{_reason(log.read_text(errors='replace'))}") from error
        try:
            with nullcontext() if _is_shown() else without_traces_of_java():
                yield spark
        except JobError as error:
            explained = _out_of_memory(error, log.read_text(errors="replace"))
            if explained is None:
                raise
            raise explained from error
        finally:
            _stop(spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stop(spark: SparkSession) -> None:
    """Stop a session whose JVM may have ended before."""
    with suppress(Exception):  # py4j's errors have no common base
        spark.stop()


def _is_shown() -> bool:
    """Whether the user asked for what Java prints and for traces."""
    return bool({"SPARK_JOBS_TRACE", "SPARK_LOG_LEVEL"} & os.environ.keys())


@contextmanager
def _started_in(folder: str) -> Iterator[Path]:
    """A Java process that is started in the block has that working directory, where Spark 4.0.0
    makes its `artifacts`, and writes what it logs and prints into a file there: some 70 lines at
    each start. With SPARK_JOBS_TRACE or SPARK_LOG_LEVEL set they go to standard error. Gives the
    file.
    """
    log = Path(folder) / "java.log"
    log.touch()
    here = Path.cwd()
    sys.stdout.flush()
    sys.stderr.flush()
    standard_output, standard_error = os.dup(1), os.dup(2)
    os.chdir(folder)
    try:
        if not _is_shown():
            with log.open("ab") as stream:
                os.dup2(stream.fileno(), 2)
        os.dup2(2, 1)  # Delta Lake prints
        yield log
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for kept, number in ((standard_output, 1), (standard_error, 2)):
            os.dup2(kept, number)
            os.close(kept)
        os.chdir(here)


@contextmanager
def _without_secrets(settings: Mapping[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """Gives the settings that pyspark may make arguments of Java, which `ps` shows. A Java process
    that is started in the block reads the others from a file in `folder`, which is gone behind it.
    If none will be started these are all settings: they go through pyspark's connection then.

    folder: of this user alone. Raises JobError if PYSPARK_SUBMIT_ARGS names such a file too.
    """
    secrets = {name: value for name, value in settings.items() if is_secret(name, value)}
    if not secrets or not _starts_java(settings):
        yield dict(settings)
        return
    before = os.environ.get(SUBMIT_ARGUMENTS)
    if before is not None and "--properties-file" in before:
        raise JobError(
            f"{SUBMIT_ARGUMENTS} has --properties-file, of which Spark reads only one: write "
            f"{', '.join(secrets)} into that file and not into the job's options"
        )
    path = folder / "secrets.properties"
    lines = "".join(f"{_property(name)}={_property(value)}\n" for name, value in secrets.items())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        # Given a file, Spark reads no spark-defaults.conf; with --load-spark-defaults it does, but
        # its launcher does not, which takes spark.driver.memory and more from there.
        file.write(_defaults() + b"\n\n" + lines.encode())
    arguments = "pyspark-shell" if before is None else before
    os.environ[SUBMIT_ARGUMENTS] = f"--properties-file {shlex.quote(str(path))} {arguments}"
    try:
        yield {name: value for name, value in settings.items() if name not in secrets}
    finally:
        if before is None:
            del os.environ[SUBMIT_ARGUMENTS]
        else:
            os.environ[SUBMIT_ARGUMENTS] = before
        path.unlink()


def uses_server(settings: Mapping[str, str]) -> bool:
    """Whether a session with these settings is one of a server of Spark Connect, where Java is."""
    return settings.get("spark.remote", "").startswith("sc:")


def _starts_java(settings: Mapping[str, str]) -> bool:
    """Whether a session with these settings starts a Java process: not under Spark Connect (but for
    `spark.remote=local`), nor after another session of this process, whose Java goes on.
    """
    if uses_server(settings):
        return False
    try:
        from pyspark import SparkConf
    except ImportError:
        return False  # `_session` says so
    # It has the settings with which Java was started, and is empty where none was.
    return not SparkConf().getAll()


def _defaults() -> bytes:
    """What is in Spark's spark-defaults.conf; empty without one."""
    folder = os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf"
    try:
        return (Path(folder) / "spark-defaults.conf").read_bytes()
    except FileNotFoundError:
        return b""


def _property(text: str) -> str:
    """A name or a value as Java's properties have it, in ASCII."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    """Its one or two UTF-16 units, each as a backslash, u and four digits."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


@contextmanager
def _without_artifacts(folder: Path) -> Iterator[None]:
    """Remove the `artifacts` that Spark 4.0.0 makes in the working directory of a Java process that
    was started by spark-submit; what was in such a folder before stays.
    """
    artifacts = folder / "artifacts"
    before = set(artifacts.iterdir()) if artifacts.is_dir() else None
    try:
        yield
    finally:
        if artifacts.is_dir():
            for path in set(artifacts.glob("spark-*")) - (before or set()):
                shutil.rmtree(path, ignore_errors=True)
            if before is None:
                with suppress(OSError):  # something else is in it
                    artifacts.rmdir()


_REASONS = (
    re.compile(r"unresolved dependency: ([^\s:]+: .*)"),
    re.compile(r'Exception in thread "main" (.*)'),
    re.compile(r"^Error: (.*)", re.MULTILINE),
)


def _reason(log: str) -> str:
    """`: why` out of what Java printed before it ended; empty if nothing there tells."""
    for pattern in _REASONS:
        match = pattern.search(log)
        if match:
            return f": {match[1].strip()[:300]}"
    return ""


_OUT_OF_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError: (.+)")


def _out_of_memory(error: JobError, log: str) -> JobError | None:
    """What to do about Java's memory if `log` says that it ran out, of which the job itself sees
    only that Java has closed the connection; None for another error.
    """
    found = _OUT_OF_MEMORY.search(log)
    if found is None or isinstance(error, StartRefused):
        return None
    return JobError(
        f"Spark's Java ran out of memory ({found[1].strip()[:100]}): give it more, for example "
        f"--conf spark.driver.memory=4g; {error}"
    )


def _local_settings(given: Mapping[str, str]) -> dict[str, str]:
    """What a session of our own gets beside what was given."""
    if "spark.remote" in given:
        return dict(given)
    packages = [connector_package(), given.get("spark.jars.packages", "")]
    packages.append(os.environ.get("SPARK_PACKAGES", ""))
    return {
        "spark.master": os.environ.get("SPARK_MASTER", DEFAULT_MASTER),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **OPTIONS,
        **given,
        "spark.jars.packages": ",".join(filter(None, packages)),
    }


def _session(application_name: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise JobError("pyspark is not installed: install kbroker with its extra spark") from error
    builder = SparkSession.builder.appName(application_name)
    for name, value in settings.items():
        builder = builder.remote(value) if name == "spark.remote" else builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # py4j and Java errors have no common base but Exception
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise JobError(f"Spark did not start: {first}") from error
    if not is_remote(spark):
        spark.sparkContext.setLogLevel(os.environ.get("SPARK_LOG_LEVEL", "ERROR"))
    return spark


def is_remote(spark: SparkSession | DataFrame) -> bool:
    """Whether it is a session of Spark Connect, or a frame of one."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ship(spark: SparkSession) -> None:
    """Send this package to the executors, which import its modules; again has no effect."""
    path = bundle_path()
    if path is None:  # it came as a bundle: Spark has sent it already
        return
    if is_remote(spark):
        spark.addArtifacts(str(path), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(path))


def shuffle_partitions(spark: SparkSession) -> int:
    """`spark.sql.shuffle.partitions`; 200, the default, if that is no number (`auto`)."""
    # Spark refuses a default here that is no number, if the setting is not given.
    value = str(spark.conf.get("spark.sql.shuffle.partitions"))
    return int(value) if value.isdecimal() else DEFAULT_SHUFFLE_PARTITIONS


def check_kafka_source(spark: SparkSession) -> None:
    """Raises JobError unless the session has Spark's Kafka source."""
    try:
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", "localhost:9").option(
            "subscribe", "topic"
        ).load()
    except Exception as error:  # AnalysisException; under Connect another class
        if "kafka" not in str(error).lower() or "find" not in str(error).lower():
            raise
        raise JobError(
            "the Kafka source is not on the class path: spark-submit --packages "
            f"{connector_package()} ..."
        ) from error
