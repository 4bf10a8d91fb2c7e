"""Settings of a session that can write tables."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.errors import JobError
from spark_jobs.lake.formats import (
    DELTA,
    EXTENSIONS,
    FORMATS,
    ICEBERG,
    PACKAGES,
    check_format,
    with_lake,
)


class Session:
    """Settings as a session of Spark gives them."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.conf = self

    def get(self, name: str, default: Any) -> Any:
        return self.settings.get(name, default)


def test_settings_are_added_to_what_is_given() -> None:
    given = {PACKAGES: "org.example:a:1", "spark.sql.catalog.spark_catalog": "mine"}
    found = with_lake(given, *FORMATS.values())
    assert found[PACKAGES] == f"org.example:a:1,{DELTA.package},{ICEBERG.package}"
    assert found[EXTENSIONS] == f"{DELTA.extension},{ICEBERG.extension}"
    assert found["spark.sql.catalog.spark_catalog"] == "mine"
    assert with_lake(found, DELTA) == found
    assert given[PACKAGES] == "org.example:a:1"


def test_a_session_without_the_format_is_one_line() -> None:
    with pytest.raises(JobError, match=r"cannot write Iceberg: .*runtime-4\.0_2\.13:1\.10\.1 and"):
        check_format(Session(with_lake({}, DELTA)), ICEBERG)  # type: ignore[arg-type]
    session = Session({EXTENSIONS: DELTA.extension})
    with pytest.raises(JobError, match=r"spark_catalog=.*DeltaCatalog") as raised:
        check_format(session, DELTA)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    check_format(Session(with_lake({}, DELTA)), DELTA)  # type: ignore[arg-type]
