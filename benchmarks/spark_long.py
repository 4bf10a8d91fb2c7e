"""The parts of `spark.py` that take long or have processes of their own: a job on one and on two
workers, and the driver's memory over many batches.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.side_by_side import ROOT, Measured
from benchmarks.spark_loads import RATE, Figures, Filled, jvm_pid
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.bundle import write_bundle
from spark_jobs.progress import BatchProgress, Reporter
from spark_jobs.spark_conf import connector_package
from tests.spark.standalone_cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES: Final = 8
FIRST_MEASURED: Final = 2
"""The batches before it load classes and start Python."""

SUBMIT_TIMEOUT_S: Final = 600
SAMPLES: Final = 10


def archive_on_workers(server: Measured, topic: Filled, workers: int) -> Figures:
    """Rows per second of `archive` on a standalone cluster of workers with a core each."""
    with tempfile.TemporaryDirectory(prefix="kbroker-spark-") as name:
        folder = Path(name)
        write_bundle(folder / "pack.zip")
        shutil.copy(ROOT / "spark_jobs" / "__main__.py", folder / "main.py")
        arguments = ["archive", "--bootstrap-servers", server.bootstrap_servers]
        arguments += ["--topics", topic.name, "--output", "out", "--progress", "json"]
        arguments += ["--maxOffsetsPerTrigger", str(topic.records // BATCHES + 1)]
        cluster_folder = folder / "cluster"
        cluster_folder.mkdir()
        with StandaloneCluster(cluster_folder, workers) as cluster:
            packages = ["--packages", connector_package(), "--py-files", "pack.zip"]
            done = subprocess.run(
                cluster.submit_command([*packages, "main.py", *arguments]),
                cwd=folder,
                env=cluster.environment,
                capture_output=True,
                text=True,
                timeout=SUBMIT_TIMEOUT_S,
            )
    if done.returncode:
        raise RuntimeError(f"archive failed: {(done.stdout + done.stderr)[-2000:]}")
    batches = [
        json.loads(line)
        for line in (done.stdout + done.stderr).splitlines()
        if line.startswith("{")
    ]
    counted = batches[FIRST_MEASURED:]
    milliseconds = sum(batch["duration_ms"] for batch in counted)
    return {RATE: sum(batch["rows"] for batch in counted) / milliseconds * 1000}


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The driver behind so many batches. heap_mb: what the JVM holds after a collection."""

    batches: int
    seconds: float
    heap_mb: float
    jvm_mb: float
    python_mb: float

    def __str__(self) -> str:
        return (
            f"| {self.batches:,} | {self.heap_mb:.1f} | {self.jvm_mb:.0f} | {self.python_mb:.0f} "
            f"| {self.seconds:.0f} |"
        )


MEMORY_HEADING: Final = (
    "| batches | JVM's heap, MB | JVM resident, MB | Python resident, MB | s |",
    "|---|---|---|---|---|",
)


def driver_memory(
    spark: SparkSession, server: Measured, topic: Filled, batches: int, folder: Path
) -> Iterator[MemorySample]:
    """`archive` in so many batches of a partition's records, and ten samples meanwhile."""
    done = 0

    def record(name: str, batch: BatchProgress, files: int) -> None:
        nonlocal done
        done += 1

    options = ArchiveOptions(
        output=str(folder / "memory"),
        bootstrap_servers=server.bootstrap_servers,
        subscribe=topic.name,
        source_options={"maxOffsetsPerTrigger": str(topic.records // batches)},
    )
    began_at = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        reporter = Reporter("none", record=record)
        running = pool.submit(archive, spark, options, reporter=reporter)
        for number in range(1, SAMPLES + 1):
            while done < batches * number // SAMPLES and not running.done():
                time.sleep(0.05)
            yield _sample(spark, done, time.perf_counter() - began_at)
        running.result()


def _sample(spark: SparkSession, batches: int, seconds: float) -> MemorySample:
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    jvm, python = _resident_mb(str(jvm_pid(spark))), _resident_mb("self")
    return MemorySample(batches, seconds, heap / 1e6, jvm, python)


def _resident_mb(process: str) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(f"no VmRSS of process {process}")
