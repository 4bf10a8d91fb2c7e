"""`archive`: topics to Parquet files, each record once for any reader."""

from __future__ import annotations

from .job import Summary, archive
from .options import ArchiveOptions

__all__ = ["ArchiveOptions", "Summary", "archive"]
