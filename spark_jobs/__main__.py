"""`python -m spark_jobs JOB ...`, and the file to hand to spark-submit."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

NAMES = ("spark_jobs", "kbroker_spark_jobs")
"""The package in a checkout, and where it is installed."""


def _package() -> str:
    """The name of the package. spark-submit runs this file by its path, perhaps a copy of it alone:
    the package is then beside it, in a zip of --py-files, or installed.
    """
    if __package__:
        return __package__
    folder = Path(__file__).resolve().parent
    if (folder / "cli.py").is_file():  # else it is a copy
        sys.path[0] = str(folder.parent)
        return folder.name
    for name in NAMES:
        try:
            import_module(name)
        except ImportError:
            continue
        return name
    sys.exit(
        "spark_jobs: this file alone is not the pack: `python -m spark_jobs bundle` writes a zip "
        "for --py-files, or install kbroker with its extra spark where the driver runs"
    )


def main(argv: list[str] | None = None) -> int:
    """Run a command line. Returns the exit code."""
    code: int = import_module(f"{_package()}.cli").main(argv)
    return code


if __name__ == "__main__":
    sys.exit(main())
