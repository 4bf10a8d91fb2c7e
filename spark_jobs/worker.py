"""The Python worker of an executor, in which the functions of tasks run one after the other."""

from __future__ import annotations

import sys
from zipimport import zipimporter


def forget_archives() -> None:
    """To be called at the end of a task, so that this worker's next task starts faster. Does
    nothing where no task runs.

    Before each task a worker calls `importlib.invalidate_caches`, so that files which
    `SparkContext.addPyFile` has brought meanwhile are found. The importer of each archive on the
    path then reads its whole directory again, and the jars of Spark's core and of the Kafka
    connector have thousands of entries: 0.2 s a task. Without importers there is nothing to read;
    one that is needed is made anew from the directory that was read before, which still holds, as
    Spark replaces no archive that it has sent.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            sys.path_importer_cache.pop(path, None)
