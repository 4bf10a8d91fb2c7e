"""The partition of `World` in one of two log directories, with the work of its mover held back."""

from __future__ import annotations

from pathlib import Path

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from tests.replication.world import TOPIC, World, fetch_request, partitions_of, records_of
from tests.sim.offload import HeldOffload

KEY = TopicPartition(TOPIC, 0)


class TwoDirs(World):
    """One partition, which begins in d1."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.work = HeldOffload()
        self.dirs = (folder / "d1", folder / "d2")
        super().__init__(folder, log_dirs=f"{self.dirs[0]},{self.dirs[1]}", **properties)

    def open(self, offload: object = None) -> None:
        super().open(self.work)
        self.replicas.start()

    def crash(self) -> None:
        """Start again on what is on disk, the partition hosted."""
        self.logs.close(clean=False)
        self.work.held.clear()
        self.open()
        self.host()

    def move(self, to: int) -> ErrorCode:
        return self.replicas.move_log(KEY, str(self.dirs[to]))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.timers.advance(1)
            if self.work.held:
                self.work.run_one()
        self.timers.advance(1)

    def finish(self) -> None:
        while self.logs.moves.future(KEY) is not None:
            self.step()

    @property
    def place(self) -> int:
        found = self.logs.directory_of(KEY)
        assert found is not None
        return self.dirs.index(found)

    def values(self, start: int = 0) -> list[int]:
        """The offsets a consumer gets, all of them."""
        offsets: list[int] = []
        end = self.log_end
        while start < end:
            data = partitions_of(self.fetch_now(fetch_request({0: start})))[0]
            assert data.error_code == 0
            found = [record.offset for record in records_of(data) if record.offset >= start]
            offsets += found
            start = found[-1] + 1
        return offsets

    @property
    def log_end(self) -> int:
        log = self.logs.get(KEY)
        assert log is not None
        return log.log_end_offset

    def folders(self, which: int) -> list[str]:
        """`-delete` and `-future` without the unique part."""
        names = (path.name for path in self.dirs[which].iterdir() if path.is_dir())
        return sorted(
            name.split(".")[0] + name[name.rindex("-") :] if "." in name else name for name in names
        )
