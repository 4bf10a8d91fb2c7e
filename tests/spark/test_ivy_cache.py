"""Sessions that begin at once share Ivy's cache."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from spark_jobs.ivy_cache import LOCK, cache_in_use, has_packages

PACKAGE = "org.example:connector_2.13:4.0.0"


def settings(folder: Path) -> dict[str, str]:
    return {"spark.jars.ivy": str(folder), "spark.jars.packages": f"{PACKAGE},"}


def is_free(folder: Path, operation: int) -> bool:
    """Whether another process could have the lock at once."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_who_fetches_packages_is_alone(tmp_path: Path) -> None:
    with cache_in_use(settings(tmp_path)):
        assert not is_free(tmp_path, fcntl.LOCK_SH)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_who_has_the_packages_starts_beside_others(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "org.example_connector_2.13-4.0.0.jar").touch()
    assert has_packages(settings(tmp_path))
    with cache_in_use(settings(tmp_path)):
        assert is_free(tmp_path, fcntl.LOCK_SH)
        assert not is_free(tmp_path, fcntl.LOCK_EX)


def test_one_package_of_two_is_missing(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "org.example_connector_2.13-4.0.0.jar").touch()
    names = {"spark.jars.packages": f"{PACKAGE},org.example:other:1.0"}
    assert not has_packages(settings(tmp_path) | names)


def test_a_name_that_is_no_package_is_left_to_spark(tmp_path: Path) -> None:
    assert not has_packages(settings(tmp_path) | {"spark.jars.packages": "connector"})


def test_a_start_that_fails_gives_the_cache_back(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), cache_in_use(settings(tmp_path)):
        raise RuntimeError("Spark did not start")
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_a_folder_that_cannot_be_made_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with cache_in_use(settings(tmp_path / "file" / "ivy")):
        pass
