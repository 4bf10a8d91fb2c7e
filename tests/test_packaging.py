"""What a source distribution and a wheel have, and that what is installed from them works: built
and installed without a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kbroker import __version__
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.properties import read_properties
from kbroker.testing.process import BrokerProcess
from scripts import manual
from tests.test_project import tracked_files

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final[Mapping[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTAINER: Final = ROOT / "config" / "container" / "server.properties"
UNIT: Final = ROOT / "config" / "kbroker.service"


def data_files() -> dict[str, Path]:
    """Where a wheel puts the data files below the prefix, and the files."""
    return {
        f"{folder}/{path.name}": path
        for folder, patterns in PROJECT["tool"]["setuptools"]["data-files"].items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }


def test_what_a_wheel_installs_beside_the_packages() -> None:
    places = set(data_files())
    assert places >= {
        "share/man/man1/kbroker.1",
        "share/bash-completion/completions/kbroker",
        "share/zsh/site-functions/_kbroker",
        "share/fish/vendor_completions.d/kbroker.fish",
        "share/kbroker/server.properties",
        "share/kbroker/kbroker.service",
        "share/kbroker/monitoring/kbroker-alerts.yml",
        "share/doc/kbroker/cli.md",
        "share/doc/kbroker/README.md",
    }
    assert set(data_files().values()) >= set(manual.files())


def test_the_licence_is_an_spdx_expression() -> None:
    """PEP 639, which does not allow a classifier for the licence beside it."""
    project = PROJECT["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert not any(each.startswith("License") for each in project["classifiers"])


def manifest() -> list[re.Pattern[str]]:
    """Patterns of the names that MANIFEST.in includes."""
    found = []
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        words = line.split()
        if words[:1] == ["graft"]:
            found.append(re.compile(re.escape(words[1]) + "/.*"))
        if words[:1] == ["include"]:
            found += [re.compile(re.escape(word)) for word in words[1:]]
    return found


def test_a_source_distribution_has_all_that_is_in_the_repository() -> None:
    """A new folder gets its line in MANIFEST.in; pyproject.toml is always in."""
    names = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.is_file()}
    patterns = manifest()
    left_out = {name for name in names if not any(each.fullmatch(name) for each in patterns)}
    assert left_out <= {"pyproject.toml", "MANIFEST.in"}


# -- the container ---------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: instruction and its arguments."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_what_the_image_copies_is_there_and_sent_to_the_build() -> None:
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    assert {"kbroker", "pyproject.toml", "config/container/server.properties"} <= set(sources)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.partition('/')[0]}" in ignored, source
    installed = {path.relative_to(ROOT).parts[0] for path in data_files().values()}
    copied = {source.partition("/")[0] for source in sources}
    assert installed - {"CHANGELOG.md"} <= copied


def test_the_container_serves_what_it_exposes() -> None:
    config = BrokerConfig.from_properties(read_properties(CONTAINER), source=str(CONTAINER))
    assert config.warnings == ()
    (listener,) = config.listeners
    exposed = [rest for word, rest in instructions() if word == "EXPOSE"]
    metrics = config.get_string("kbroker.metrics.listener").rpartition(":")[2]
    assert exposed == [f"{listener.port} {metrics}"]
    volumes = [rest for word, rest in instructions() if word == "VOLUME"]
    assert tuple(volumes) == config.get_list("log.dirs")
    (health,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    assert f"127.0.0.1:{metrics}/healthz" in health
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["kbroker"]


# -- the unit of systemd ---------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a program that is there: systemd looks for it."""
    text = UNIT.read_text()
    program = "/opt/kbroker/bin/kbroker"
    assert f"ExecStart={program} serve /etc/kbroker/server.properties" in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, found) == (0, []), done.stderr


# -- built and installed ---------------------------------------------------------------------------


class Built(NamedTuple):
    """sdist, wheel: the files. prefix: of an environment with the wheel."""

    sdist: Path
    wheel: Path
    prefix: Path


def backend(source: Path, call: str) -> None:
    """Call setuptools as a front end does, with the packages of this environment."""
    program = f"from setuptools import build_meta; build_meta.{call}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment(prefix: Path) -> None:
    """A virtual environment that sees the packages of this one behind its own, in which kbroker is
    not. (This one may be a virtual environment itself, so that `system_site_packages` is not it.)
    """
    venv.create(prefix, with_pip=False)
    (own,) = prefix.glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (own / "shared.pth").write_text("\n".join(packages) + "\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A source distribution of the repository, a wheel of what is in that, and it is installed."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "repository"
    for path in tracked_files():
        if path.is_file():
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    backend(source, f"build_sdist({str(folder)!r})")
    (sdist,) = folder.glob("kbroker-*.tar.gz")
    with tarfile.open(sdist) as archive:
        # 3.11.3 and older know no filters and no such attribute.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheels = ["wheel", "--no-build-isolation", "--wheel-dir", str(folder)]
    pip(Path(sys.executable), *wheels, str(unpacked))
    (wheel,) = folder.glob("kbroker-*.whl")
    prefix = folder / "installed"
    environment(prefix)
    pip(prefix / "bin" / "python", "install", "--ignore-installed", str(wheel))
    return Built(sdist, wheel, prefix)


def pip(python: Path, command: str, *arguments: str) -> None:
    """Run pip without a network."""
    done = subprocess.run(
        [python, "-m", "pip", command, "--quiet", "--no-deps", "--no-index", *arguments],
        env=without_python_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def without_python_variables() -> dict[str, str]:
    """Nothing in the environment of a process leads to the repository."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


@pytest.mark.slow
def test_the_source_distribution_is_complete(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.is_file()}
    assert tracked - names == set()


@pytest.mark.slow
def test_the_wheel_is_complete(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        for place, path in data_files().items():
            (name,) = [each for each in names if each.endswith(f".data/data/{place}")]
            assert archive.read(name) == path.read_bytes()
        (name,) = [each for each in names if each.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(name).decode())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kbroker").rglob("*.py")}
    assert modules | {"kbroker/py.typed"} <= names
    pack = {path.relative_to(ROOT / "spark_jobs") for path in (ROOT / "spark_jobs").rglob("*.py")}
    assert {f"kbroker_spark_jobs/{path.as_posix()}" for path in pack} <= names
    assert {each.partition("/")[0] for each in names if each.endswith(".py")} == {
        "kbroker",
        "kbroker_spark_jobs",
    }
    assert (headers["License-Expression"], headers["License-File"]) == ("Apache-2.0", "LICENSE")
    assert set(headers.get_all("Provides-Extra", [])) == set(
        PROJECT["project"]["optional-dependencies"]
    )


@pytest.mark.slow
def test_the_installed_command_works(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder where nothing of the repository is."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [built.prefix / "bin" / program, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("kbroker", "--version") == f"kbroker {__version__}\n"
    place = run("python", "-c", "import kbroker; print(kbroker.__file__)")
    assert place.startswith(str(built.prefix))
    properties = built.prefix / "share" / "kbroker" / "server.properties"
    program = str(built.prefix / "bin" / "kbroker")
    with BrokerProcess(tmp_path / "data", properties=properties, command=[program]) as broker:
        address = ("-b", broker.bootstrap_servers)
        run("kbroker", "topics", "create", "greetings", *address)
        assert run("kbroker", "topics", "list", *address) == "greetings\t1\t1\n"
    assert (built.prefix / "share" / "man" / "man1" / "kbroker.1").is_file()
    script = built.prefix / "share" / "bash-completion" / "completions" / "kbroker"
    asked = f"source {script}; complete -p kbroker"
    shown = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert "kbroker" in shown.stdout
