"""The id of a record: what `--by` names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_BY: Final = re.compile(r"key|value|header:.+|json:\$.*")


def parse_by(text: str) -> str:
    """`key`, `value`, `header:NAME` or `json:$.path`. Raises ValueError."""
    if not _BY.fullmatch(text):
        raise ValueError("write key, value, header:NAME, or json:$.path of a field of the value")
    return text


def id_column(by: str) -> Column:
    """The id of each record as binary, null where it has none."""
    from pyspark.sql import functions as F

    kind, _, name = by.partition(":")
    match kind:
        case "header":
            named = F.filter("headers", lambda header: header["key"] == F.lit(name))
            return F.get(named, 0)["value"]
        case "json":
            return F.get_json_object(F.col("value").cast("string"), name).cast("binary")
    return F.col(kind).cast("binary")
