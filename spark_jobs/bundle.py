"""This package as one zip, for `spark-submit --py-files` and for executors.

It has what the jobs import: the package itself under the name it has here, and of kbroker the
client and the protocol with the modules they stand on.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .errors import JobError

PACKAGE: Final = __package__
"""`spark_jobs` in a checkout, `kbroker_spark_jobs` where it is installed."""

DEFAULT_NAME: Final = f"{PACKAGE}.zip"
KBROKER: Final = ("__init__.py", "model.py", "ports.py", "client/**/*.py", "protocol/**/*.py")
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def own_folder() -> Path | None:
    """The folder of this package; None where it runs from a zip."""
    folder = Path(__file__).resolve().parent
    return folder if folder.is_dir() else None


def write_bundle(path: Path) -> int:
    """Write the zip; gives the number of its modules. The same sources give the same bytes. Raises
    JobError if it cannot be written.
    """
    folder = own_folder()
    if folder is None:
        raise JobError("this is a bundle already: copy the zip itself")
    files = {f"{PACKAGE}/{file.relative_to(folder)}": file for file in folder.rglob("*.py")}
    spec = find_spec("kbroker")
    if spec is not None and spec.origin is not None:
        kbroker = Path(spec.origin).parent
        for pattern in KBROKER:
            files |= {
                f"kbroker/{file.relative_to(kbroker)}": file for file in kbroker.glob(pattern)
            }
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name in sorted(files):
                content = files[name].read_bytes()
                bundle.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(files)


@cache
def bundle_path() -> Path | None:
    """A bundle for the executors, made once in this process and removed at its end; None where this
    runs from one.
    """
    if own_folder() is None:
        return None
    folder = tempfile.mkdtemp(prefix="spark-jobs-bundle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / DEFAULT_NAME
    write_bundle(path)
    return path
