"""Whether a range is in the page cache, queried from the real kernel where it can count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import ENOSYS
from pathlib import Path

import pytest

from kbroker.server.network.page_cache import PageCache, system_pages_of

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


def drop(fd: int) -> None:
    """Evict the middle of the file, which the kernel may or may not do."""
    for _ in range(100):
        os.posix_fadvise(fd, 256 * PAGE, 512 * PAGE, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(fd, [bytearray(1)], 512 * PAGE, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except OSError:
            break
        os.fsync(fd)
    pytest.skip("this file system keeps its pages, or cannot tell")


def test_a_hole_in_the_middle_is_seen(fd: int) -> None:
    cache = PageCache(system_pages_of())
    if system_pages_of() is None or not cache.holds(fd, 0, PAGES * PAGE):
        pytest.skip("this system cannot count pages")
    drop(fd)
    assert not cache.holds(fd, 0, PAGES * PAGE)
    assert not cache.holds(fd, 255 * PAGE + 7, 514 * PAGE)
    assert cache.holds(fd, 7, PAGE)
    os.pread(fd, PAGES * PAGE, 0)
    assert cache.holds(fd, 0, PAGES * PAGE)
    cache.was_read(fd, 0, PAGES * PAGE)
    drop(fd)
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
