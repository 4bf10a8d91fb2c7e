"""Tables as SQL makes them: how much of their metadata stays on disk."""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.archive.commits import NO_BATCH, Commit, add_commit, newest_commit
from spark_jobs.archive.lake_store import LakeStore, copy_note
from spark_jobs.archive.stores import Batch
from spark_jobs.compact import tables as compact_tables
from spark_jobs.compact.options import CompactOptions
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.lake.formats import DELTA, ICEBERG
from spark_jobs.lake.notes import PROPERTY
from spark_jobs.lake.tables import METADATA_LIMITS, Column, IcebergTable, Note, table_at
from spark_jobs.storage import Folder, absolute

ENABLED, MAXIMUM = METADATA_LIMITS
SET = (
    f"SET TBLPROPERTIES ('{ENABLED}'='true', '{MAXIMUM}'='100')",
    f"SET TBLPROPERTIES ('{ENABLED}'='true')",
)


@dataclass
class Row:
    key: str


@dataclass
class Session:
    """Takes SQL and remembers it. properties: names that the table has. failure: of any other
    statement.
    """

    properties: tuple[str, ...] = ()
    failure: Exception | None = None
    settings: dict[str, str] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)

    @property
    def conf(self) -> Session:
        return self

    def get(self, name: str, default: Any) -> Any:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def sql(self, statement: str) -> Session:
        if statement.startswith("SHOW TBLPROPERTIES "):
            return self
        if self.failure is not None:
            raise self.failure
        self.statements.append(statement)
        return self

    def collect(self) -> list[Row]:
        return [Row(key) for key in self.properties]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(absolute(str(tmp_path / "t")))


def test_a_new_table_of_iceberg_deletes_old_metadata(folder: Folder) -> None:
    session = Session()
    IcebergTable(folder).create(session, [Column("a", "INT")], ["`a`"])  # type: ignore[arg-type]
    (statement,) = session.statements
    assert statement.startswith("CREATE TABLE IF NOT EXISTS kbroker_")
    assert statement.endswith(
        ".`t` (`a` INT) USING iceberg PARTITIONED BY (`a`) "
        f"TBLPROPERTIES ('format-version'='2', '{ENABLED}'='true', '{MAXIMUM}'='100')"
    )


@pytest.mark.parametrize(
    ("properties", "changed"),
    [
        (("format-version",), SET[0]),
        ((MAXIMUM,), SET[1]),
        ((ENABLED, MAXIMUM), None),  # whatever the user has set
    ],
)
def test_a_table_from_before(
    folder: Folder, properties: tuple[str, ...], changed: str | None
) -> None:
    """A start of the job gives it what it lacks."""
    folder.write("metadata/v1.metadata.json", b"{}")
    session = Session(properties)
    store = LakeStore(IcebergTable(folder), ICEBERG, (), session)  # type: ignore[arg-type]
    store.finish(Commit(2, "c", 1, 0, ("topic",), {"t": {0: 1}}, records=1))
    assert [text.partition("`t` ")[2] for text in session.statements] == (
        [changed] if changed is not None else []
    )


def test_delta_lake_cleans_up_by_itself(folder: Folder) -> None:
    folder.write("_delta_log/00000000000000000000.json", b"{}")
    session = Session()
    store = LakeStore(table_at(folder, DELTA), DELTA, (), session)  # type: ignore[arg-type]
    store.finish(Commit(2, "c", 1, 0, ("topic",), {"t": {0: 1}}, records=1))
    assert session.statements == []


NEWEST = Commit(2, "c", 1, 0, ("topic",), {"t": {0: 5}}, records=5)


def killed_behind_its_commit(folder: Folder) -> LakeStore:
    """An archive whose table has a batch that its copies do not know of."""
    add_commit(folder, Commit(1, "c", 1, NO_BATCH, ("topic",), {}))
    summary = {PROPERTY: NEWEST.to_json().decode()}
    content = {"snapshots": [{"snapshot-id": 1, "summary": summary}], "current-snapshot-id": 1}
    folder.write("metadata/v1.metadata.json", json.dumps(content).encode())
    session: Any = Session((ENABLED, MAXIMUM))
    return LakeStore(IcebergTable(folder), ICEBERG, (), session)


def expire(folder: Folder) -> None:
    """As compact --history, once the snapshot with the note is old."""
    content = {"snapshots": [{"snapshot-id": 2, "parent-snapshot-id": 1, "summary": {}}]}
    content |= {"current-snapshot-id": 2}  # type: ignore[dict-item]  # of JSON
    folder.write("metadata/v2.metadata.json", json.dumps(content).encode())


def test_a_start_writes_down_what_only_the_table_says(folder: Folder) -> None:
    """The table's history went away, and the batch was archived a second time."""
    store = killed_behind_its_commit(folder)
    store.finish(NEWEST)
    store.finish(NEWEST)
    expire(folder)
    assert store.newest() == newest_commit(folder) == NEWEST


def test_a_compaction_writes_down_what_only_the_table_says(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_tables, "check_format", lambda *_arguments: None)
    store = killed_behind_its_commit(folder)
    session: Any = Session(failure=ValueError("rewritten, and expired"))
    for _ in range(2):
        with pytest.raises(JobError, match="expired"):
            compact_tables.compact_table(session, CompactOptions(str(folder)), ICEBERG, 0)
    expire(folder)
    assert store.newest() == newest_commit(folder) == NEWEST


def test_a_compaction_beside_a_commit(folder: Folder) -> None:
    """It writes the copy down before the archive itself comes to it."""
    store = killed_behind_its_commit(folder)

    def append(note: Note) -> None:
        summary = {PROPERTY: note.text}
        content = {"snapshots": [{"snapshot-id": 2, "summary": summary}], "current-snapshot-id": 2}
        folder.write("metadata/v2.metadata.json", json.dumps(content).encode())
        copy_note(folder, ICEBERG)

    batch = Batch(1, {"t": {0: 9}}, {}, lambda: None)
    following = store.commit(NEWEST, batch, 4, append)
    assert store.newest() == newest_commit(folder) == following
    with pytest.raises(StartRefused, match="another run writes"):
        store.commit(NEWEST, batch, 0, append)


def test_a_compaction_that_many_commits_overtook_is_one_line(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_tables, "check_format", lambda *_arguments: None)
    session = Session(failure=ValueError("Metadata file for version 12 is missing"))
    options = CompactOptions(str(folder))
    said = r"compact stopped: .*/t got more commits .*previous-versions-max\): compact more often"
    with pytest.raises(JobError, match=said):
        compact_tables.compact_table(session, options, ICEBERG, 0)  # type: ignore[arg-type]


class RemoteSession(Session):
    """One of Spark Connect, in which a statement takes a while. seen: settings at its beginning and
    at its end.
    """

    session_id = "tests"

    def unset(self, name: str) -> None:
        del self.settings[name]

    def sql(self, statement: str) -> Session:
        seen.append((statement, dict(self.settings)))
        time.sleep(0.05)
        seen.append((statement, dict(self.settings)))
        return self


RemoteSession.__module__ = "pyspark.sql.connect.session"
seen: list[tuple[str, dict[str, str]]] = []


def test_queries_of_one_session_leave_their_own_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Spark Connect they have the settings of the user's session."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session, table = RemoteSession(), table_at(Folder(absolute(str(tmp_path))), DELTA)
    numbers = range(1, 9)

    def change(number: int) -> None:
        table.change(session, str(number), Note(number, f"{number}"))  # type: ignore[arg-type]  # not Spark's

    with ThreadPoolExecutor(len(numbers)) as threads:
        list(threads.map(change, numbers))
    assert len(seen) == 2 * len(numbers) and not session.settings
    for statement, settings in seen:
        assert settings == {
            "spark.databricks.delta.commitInfo.userMetadata": f'{{"kbroker.commit":{statement}}}',
            "spark.databricks.delta.write.txnAppId": "kbroker",
            "spark.databricks.delta.write.txnVersion": statement,
        }
