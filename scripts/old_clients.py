"""Bring a client of the 0.10 era into .cache/old-clients, beside the one of today in .venv.

    python scripts/old_clients.py        prints the folder to put on PYTHONPATH

The version and its hash are in requirements/old-clients.txt. What is there already is not fetched
again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "old-clients.txt"


def folder() -> Path:
    """The folder with the packages, installed at the first call.

    Raises subprocess.CalledProcessError (with pip's output) if they can't be had.
    """
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = ROOT / ".cache" / "old-clients" / wanted
    if target.exists():
        return target
    partial = target.with_name(f"{wanted}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--retries", "1", "--timeout", "15"]
    command += ["--target", str(partial), "--requirement", str(REQUIREMENTS)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    partial.rename(target)
    return target


if __name__ == "__main__":
    try:
        print(folder())
    except subprocess.CalledProcessError as error:
        sys.exit(f"old_clients.py: {error.stderr.strip()}")
