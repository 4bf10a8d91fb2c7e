"""Which files of an archive hold a topic."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError
from spark_jobs.restore.files import chosen_topic, ends_of, files_of, overlapping, starts_of

PATHS = [
    "topic=a/date=2026-05-01/p00000-000000000000-000000000099.parquet",
    "topic=a/date=2026-05-02/p00000-000000000050-000000000180.parquet",
    "topic=a/date=2026-05-02/p00001-000000000007-000000000009.parquet",
    "topic=b/date=2026-05-02/p00000-000000000000-000000000500.parquet",
    "topic=b/date=2026-05-02/p00000-000000000000-000000000003.g2.parquet",
    "topic=~string/date=1970-01-01/no-records.parquet",
]


def test_the_newest_generation_of_a_topic() -> None:
    assert [file.path for file in files_of(PATHS, "a")] == PATHS[:3]
    assert [file.path for file in files_of(PATHS, "b")] == [PATHS[4]]


def test_ranges() -> None:
    files = files_of(PATHS, "a")
    assert starts_of(files) == {0: 0, 1: 7}
    assert ends_of(files) == {0: 181, 1: 10}


@pytest.mark.parametrize(
    ("starts", "ends", "numbers"),
    [
        ({0: 0, 1: 0}, {0: 50, 1: 7}, [0]),
        ({0: 100, 1: 0}, {0: 101, 1: 8}, [1, 2]),
        ({0: 99}, {0: 100}, [0, 1]),
        ({0: 181, 1: 10}, {0: 300, 1: 11}, []),
    ],
)
def test_files_of_a_slice(starts: dict[int, int], ends: dict[int, int], numbers: list[int]) -> None:
    found = overlapping(files_of(PATHS, "a"), starts, ends)
    assert [file.path for file in found] == [PATHS[number] for number in numbers]


def test_the_topic_is_named_where_there_are_several() -> None:
    assert chosen_topic(PATHS, "b", "out") == "b"
    assert chosen_topic(PATHS[:3], None, "out") == "a"
    for paths, topic, why in (
        (PATHS, None, "several topics \\(a, b\\): name one"),
        (PATHS, "c", "no records of topic c"),
        ([], None, "no files of an archive"),
    ):
        with pytest.raises(JobError, match=why):
            chosen_topic(paths, topic, "out")
