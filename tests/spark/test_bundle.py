"""The pack as a zip and as an installed package: whole, and under a name that is ours."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_jobs import bundle
from spark_jobs.bundle import bundle_path, write_bundle
from spark_jobs.errors import JobError

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "spark_jobs"
ALLOWED_OF_KBROKER = ("kbroker.client", "kbroker.protocol")


def imports(path: Path) -> set[str]:
    """Absolute imports of a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", sorted(PACK.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_of_a_module(path: Path) -> None:
    """Of its own package by relative imports, for it has another name where it is installed; of
    kbroker the client and the protocol.
    """
    names = imports(path)
    assert not {name for name in names if name.split(".")[0] == "spark_jobs"}
    of_kbroker = {name for name in names if name.split(".")[0] == "kbroker"}
    assert all(name.startswith(ALLOWED_OF_KBROKER) for name in of_kbroker), of_kbroker


@pytest.mark.parametrize(
    "path",
    # What pyspark 4.0 refuses without pandas is made of its parts there, except under Connect.
    sorted(path for path in PACK.rglob("*.py") if path.name != "arrow_map.py"),
    ids=lambda path: path.stem,
)
def test_no_internals_of_the_jvm(path: Path) -> None:
    attributes = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not attributes & {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_gateway"}


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**kept, **environment}
    )


def test_a_bundle_is_whole_and_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    count = write_bundle(path)
    names = zipfile.ZipFile(path).namelist()
    assert len(names) == count == len(set(names))
    assert {"spark_jobs/cli.py", "spark_jobs/archive/job.py", "kbroker/client/cluster.py"} < {
        *names
    }
    assert not [name for name in names if name.startswith("kbroker/server")]
    first = path.read_bytes()
    write_bundle(path)
    assert path.read_bytes() == first


def test_the_pack_runs_from_the_bundle_alone(tmp_path: Path) -> None:
    """The file alone given to spark-submit finds its package in --py-files; kbroker is not
    installed there.
    """
    write_bundle(tmp_path / "pack.zip")
    shutil.copy(PACK / "__main__.py", tmp_path / "main.py")
    command = [sys.executable, "-S", "main.py"]  # what is in site-packages must not help
    environment = {"PYTHONPATH": f"{tmp_path}/pack.zip"}
    done = run([*command, "archive", "--topics", "t"], tmp_path, **environment)
    assert (done.returncode, done.stderr) == (
        1,
        "spark_jobs: give --output, the folder of the Parquet files\n",
    )
    listed = "import spark_jobs.cluster as c, kbroker; print(c.__file__, kbroker.__file__)"
    found = run([sys.executable, "-S", "-c", listed], tmp_path, **environment).stdout.split()
    assert all(place.startswith(f"{tmp_path}/pack.zip") for place in found) and len(found) == 2


def test_the_file_alone_without_the_pack_is_one_line(tmp_path: Path) -> None:
    shutil.copy(PACK / "__main__.py", tmp_path / "main.py")
    done = run([sys.executable, "-S", "main.py", "archive"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "--py-files" in done.stderr


def test_a_bundle_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be written: "):
        write_bundle(tmp_path / "no" / "pack.zip")


def test_for_executors_it_is_made_once() -> None:
    path = bundle_path()
    assert path is not None and path == bundle_path()
    assert path.name == bundle.DEFAULT_NAME == "spark_jobs.zip"
    assert zipfile.ZipFile(path).testzip() is None


def test_the_installed_package_has_a_name_of_ours() -> None:
    code = (
        "from distutils.core import run_setup\n"
        "found = run_setup('setup.py', ['--quiet'], stop_after='init')\n"
        "print(sorted(name for name in found.packages if 'spark' in name))\n"
        "print(found.package_dir, 'kbroker.cli' in found.packages, 'spark_jobs' in found.packages)"
    )
    code = f"import setuptools\n{code}"
    done = run([sys.executable, "-W", "ignore", "-c", code], ROOT)
    assert done.returncode == 0, done.stderr
    packages, rest = done.stdout.splitlines()
    folders = {path.parent.relative_to(PACK) for path in PACK.rglob("__init__.py")}
    expected = {".".join(("kbroker_spark_jobs", *folder.parts)) for folder in folders}
    assert packages == str(sorted(expected))
    assert rest == "{'kbroker_spark_jobs': 'spark_jobs'} True False"


def test_the_pack_works_under_its_installed_name(tmp_path: Path) -> None:
    shutil.copytree(PACK, tmp_path / "kbroker_spark_jobs", ignore=shutil.ignore_patterns("*.pyc"))
    command = [sys.executable, "-m", "kbroker_spark_jobs", "archive", "--topics", "t"]
    done = run(command, tmp_path, PYTHONPATH=str(ROOT))
    assert done.stderr == "spark_jobs: give --output, the folder of the Parquet files\n"
    code = "from kbroker_spark_jobs import bundle; print(bundle.DEFAULT_NAME)"
    done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout == "kbroker_spark_jobs.zip\n"
