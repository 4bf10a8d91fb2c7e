"""Whether a range is in the page cache, asked of the real kernel where it can count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import ENOSYS
from pathlib import Path

import pytest

from kbroker.server.page_cache import PageCache, system_pages_of

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 1024


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A file of 1,024 pages on the disk and in memory."""
    fd = os.open(tmp_path / "records", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(PAGES * PAGE), 0)
    os.fsync(fd)
    yield fd
    os.close(fd)


def drop(fd: int, first: int, count: int) -> None:
    """Take pages out of memory."""
    os.posix_fadvise(fd, first * PAGE, count * PAGE, os.POSIX_FADV_DONTNEED)


def counts_holes(fd: int) -> bool:
    drop(fd, 256, 512)
    found = not PageCache(system_pages_of()).holds(fd, 0, PAGES * PAGE)
    os.pread(fd, PAGES * PAGE, 0)
    return found


def test_a_hole_in_the_middle_is_seen(fd: int) -> None:
    if not counts_holes(fd):
        pytest.skip("this system cannot count pages")
    cache = PageCache(system_pages_of())
    assert cache.holds(fd, 0, PAGES * PAGE)
    drop(fd, 256, 512)
    assert not cache.holds(fd, 0, PAGES * PAGE)
    assert not cache.holds(fd, 255 * PAGE + 7, 514 * PAGE)
    assert cache.holds(fd, 7, PAGE)
    os.pread(fd, PAGES * PAGE, 0)
    assert cache.holds(fd, 0, PAGES * PAGE)
    cache.was_read(fd, 0, PAGES * PAGE)
    drop(fd, 256, 512)
    assert not cache.holds(fd, 0, PAGES * PAGE), "it still counts"


@pytest.mark.parametrize(
    ("position", "count", "pages"),
    [(0, 1, 1), (0, PAGE, 1), (0, PAGE + 1, 2), (PAGE - 1, 2, 2), (5, 3 * PAGE, 4)],
)
def test_every_page_of_the_range_counts(fd: int, position: int, count: int, pages: int) -> None:
    assert PageCache(lambda *_: pages).holds(fd, position, count)
    assert not PageCache(lambda *_: pages - 1).holds(fd, position, count)


def test_where_counting_is_refused_the_ends_are_tried(fd: int) -> None:
    asked = []

    def refuse(*range_: int) -> int:
        asked.append(range_)
        raise OSError(ENOSYS, "no such call")

    cache = PageCache(refuse)
    for _ in range(2):
        assert cache.holds(fd, 0, PAGES * PAGE)
    assert asked == [(fd, 0, PAGES * PAGE)], "asked once"


def test_where_pages_are_kept_elsewhere_counting_ends(fd: int) -> None:
    cache = PageCache(lambda *_: 0)
    assert not cache.holds(fd, 0, PAGE)
    cache.was_read(fd, 0, PAGE)
    assert cache.holds(fd, 0, PAGE)
