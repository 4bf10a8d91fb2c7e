"""Java programs of the tests, compiled once for each content and kept beside Kafka's jars: a
compiler costs more than most of what is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "java-classes"


def has_compiler() -> bool:
    """Whether there is a javac."""
    return shutil.which("javac") is not None


def classes_of(source: Path, class_path: str) -> str:
    """The folder of a source's classes, compiled against class_path unless they are there.

    Raises AssertionError with what javac says.
    """
    content = source.read_bytes() + class_path.encode() + _compiler_version()
    folder = CACHE / hashlib.sha256(content).hexdigest()[:32]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # another process may compile the same: whichever is ready first is taken
        with tempfile.TemporaryDirectory(dir=CACHE) as new:
            classes = Path(new) / "classes"
            command = ["javac", "-d", str(classes), "-cp", class_path, str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            try:
                classes.rename(folder)
            except OSError:
                assert folder.exists()
    return str(folder)


def _compiler_version() -> bytes:
    """What tells compilers apart, without starting one."""
    compiler = os.path.realpath(shutil.which("javac") or "")
    release = Path(compiler).parents[1] / "release"
    return release.read_bytes() if release.is_file() else compiler.encode()
