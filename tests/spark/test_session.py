"""Which settings of a session become arguments of Java, and which it reads from a file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs import session
from spark_jobs.errors import JobError
from spark_jobs.session import SUBMIT_ARGUMENTS, _without_secrets, open_session, shuffle_partitions
from tests.test_project import ROOT

SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hidden-1",
    "spark.sql.catalog.lake.token": "hidden=2 # \\ \u00e9 \U0001f600",
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net": "hidden-3",
    "spark.executorEnv.AWS_SESSION_TOKEN": "hidden-4",
    "spark.kubernetes.authenticate.oauthToken": "hidden-5",
    "spark.yarn.appMasterEnv.REGISTRY_TOKEN": "hidden-6",
    "spark.hadoop.fs.s3a.access.key": "hidden-7",
    "spark.executorEnv.AccessKey": "hidden-8",
}
SUBMIT = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
path = text = mode = ""
if "--properties-file" in arguments:
    path = arguments[arguments.index("--properties-file") + 1]
    text, mode = open(path).read(), os.stat(path).st_mode
json.dump([arguments, path, text, mode], open({{found!r}}, "w"))
sys.exit(1)
"""
START = """
import json, sys
from spark_jobs.errors import JobError
from spark_jobs.session import open_session
try:
    with open_session("secrets", json.loads(sys.argv[1])):
        pass
except JobError as error:
    print(error)
"""


def started(home: Path, settings: dict[str, str]) -> tuple[list[Any], str]:
    """What a spark-submit of ours in the folder `home` saw, which then ends, and what the start of
    the session said about it.
    """
    found = home / "found.json"
    (home / "bin").mkdir()
    (home / "jars").mkdir()
    (home / "jars" / "spark-core_2.13-4.0.0.jar").touch()
    submit = home / "bin" / "spark-submit"
    submit.write_text(SUBMIT.format(found=str(found)))
    submit.chmod(0o755)
    values = json.dumps(settings | {"spark.jars.ivy": str(home / "ivy")})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    run = subprocess.run(
        [sys.executable, "-c", START, values],
        env=clean | {"SPARK_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(found.read_text()), run.stdout


def test_secrets_are_no_arguments_of_java(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    settings = {"spark.master": "local[1]", "spark.executor.memory": "2g", **SECRETS}
    (arguments, path, text, mode), said = started(tmp_path, settings)
    assert "hidden" not in " ".join(arguments) and "spark.executor.memory=2g" in arguments
    assert arguments[-1] == "pyspark-shell"
    assert stat.S_IMODE(mode) == 0o600
    assert text.split() == [
        "spark.hadoop.fs.s3a.secret.key=hidden-1",
        "spark.sql.catalog.lake.token=hidden\\u003d2\\u0020\\u0023\\u0020\\u005c\\u0020\\u00e9"
        "\\u0020\\ud83d\\ude00",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net=hidden-3",
        "spark.executorEnv.AWS_SESSION_TOKEN=hidden-4",
        "spark.kubernetes.authenticate.oauthToken=hidden-5",
        "spark.yarn.appMasterEnv.REGISTRY_TOKEN=hidden-6",
        "spark.hadoop.fs.s3a.access.key=hidden-7",
        "spark.executorEnv.AccessKey=hidden-8",
    ]
    assert "did not start" in said and "hidden" not in said
    assert not Path(path).parent.exists()


def test_what_is_in_spark_defaults_stays(tmp_path: Path) -> None:
    """Spark reads one file of settings: that of --properties-file, or spark-defaults.conf."""
    pytest.importorskip("pyspark")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 3g\\")
    (_, _, text, _), _ = started(tmp_path, {"spark.authenticate.secret": "hidden"})
    assert text == "spark.driver.memory 3g\\\n\nspark.authenticate.secret=hidden\n"


def with_java(monkeypatch: pytest.MonkeyPatch, *settings: tuple[str, str]) -> None:
    """As if Java had been started in this process with some settings, or not at all without."""

    class SparkConf:
        def getAll(self) -> list[tuple[str, str]]:
            return list(settings)

    monkeypatch.setattr(pytest.importorskip("pyspark"), "SparkConf", SparkConf)


def test_arguments_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_java(monkeypatch)
    monkeypatch.setenv(SUBMIT_ARGUMENTS, "-v pyspark-shell")
    with _without_secrets(SECRETS, tmp_path) as shown:
        assert shown == {}
        path = tmp_path / "secrets.properties"
        assert os.environ[SUBMIT_ARGUMENTS] == f"--properties-file {path} -v pyspark-shell"
    assert os.environ[SUBMIT_ARGUMENTS] == "-v pyspark-shell" and not path.exists()
    monkeypatch.setenv(SUBMIT_ARGUMENTS, "--properties-file mine pyspark-shell")
    with (
        pytest.raises(JobError, match=r"write spark\.hadoop\.fs\.s3a\.secret\.key, .* into that"),
        _without_secrets(SECRETS, tmp_path),
    ):
        pass
    with _without_secrets({"spark.master": "local"}, tmp_path) as shown:
        assert shown == {"spark.master": "local"}


@pytest.mark.parametrize("more", [{}, {"spark.remote": "sc://connect:15002/;token=x"}])
def test_without_a_new_java_settings_go_through_the_connection(
    more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_java(monkeypatch, *(() if more else (("spark.submit.deployMode", "client"),)))
    monkeypatch.delenv(SUBMIT_ARGUMENTS, raising=False)
    with _without_secrets(SECRETS | more, tmp_path) as shown:
        assert shown == SECRETS | more
        assert SUBMIT_ARGUMENTS not in os.environ and not list(tmp_path.iterdir())


def test_under_spark_submit_java_may_have_ended_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job says stays, and not what stopping the session says then."""

    def stop() -> None:
        raise ConnectionRefusedError("Answer from Java side is empty")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "_session", lambda name, settings: SimpleNamespace(stop=stop))
    with open_session("job"):
        pass
    with pytest.raises(JobError, match="the job's own words"), open_session("job"):
        raise JobError("the job's own words")


@pytest.mark.parametrize(("value", "tasks"), [("8", 8), (16, 16), ("auto", 200), ("", 200)])
def test_how_many_tasks_a_shuffle_has(value: object, tasks: int) -> None:
    settings = {"spark.sql.shuffle.partitions": value}
    assert shuffle_partitions(cast("Any", SimpleNamespace(conf=settings))) == tasks
