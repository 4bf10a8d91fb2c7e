"""Clients of other languages: a Go program built, and packages of npm installed, from
pinned versions into .cache, once for each content. Where toolchain or registry is missing, the
caller's tests are skipped with what is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(__file__).resolve().parents[3] / ".cache"
BUILD_TIMEOUT_S: Final = 500.0


def run_or_skip(what: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Run a step of an installation; skip the test with the last line of its output where it
    fails. env: in addition to the process's.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} can't be had within {BUILD_TIMEOUT_S:.0f} s")
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        pytest.skip(f"{what} can't be had: {lines[-1]}")


def cached(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """A folder of .cache that `make` fills, once for each content of the sources."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    folder = CACHE / name / digest.hexdigest()[:16]
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            make(partial)
            if not folder.exists():
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def go_program(module: Path) -> Path:
    """The executable of a Go module with one package; its dependencies are those of go.sum."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("needs Go")
    sources = sorted(path for path in module.iterdir() if path.name != "go.work")

    def build(target: Path) -> None:
        env = {
            "GOMODCACHE": str(CACHE / "go" / "modules"),
            "GOCACHE": str(CACHE / "go" / "build"),
            "GOFLAGS": "-mod=readonly -modcacherw",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        }
        command = [str(go), "build", "-o", str(target / "program"), "."]
        run_or_skip("franz-go", command, module, env)

    return cached("go-programs", sources, build) / "program"


def node_modules(package: Path) -> Path:
    """A folder with node_modules of a package.json and its lock file."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs Node.js with npm")
    sources = [package / "package.json", package / "package-lock.json"]

    def install(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        command = [str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        run_or_skip("kafkajs", command, target, {})

    return cached("node-packages", sources, install)


def python_packages(name: str, requirements: Path) -> Path:
    """A folder for PYTHONPATH with what a file of pinned requirements names."""

    def install(target: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--retries", "1", "--timeout", "15"]
        command += ["--target", str(target / "packages"), "--requirement", str(requirements)]
        run_or_skip(name, command, target, {})

    return cached(name, [requirements], install) / "packages"
