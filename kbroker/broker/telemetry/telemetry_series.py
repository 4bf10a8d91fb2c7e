"""The metrics that clients have pushed, as series for Prometheus (`server/monitoring`): the newest
value of each, of a delta the sum since the client came. Those of a client go with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kbroker.model import Uuid, uuid_to_string
from kbroker.protocol.otlp import MetricPoint

MAX_SERIES: Final = 10_000
MAX_CHARACTERS: Final = 200
"""Of a name, and of a label's name and value."""

MAX_LABELS: Final = 16
PREFIX: Final = "client_"
"""Of every name: no metric of the broker begins with it."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")

Labels = tuple[tuple[str, str], ...]
_Key = tuple[Uuid, Labels]


class Sample(NamedTuple):
    """One value of a client."""

    labels: Mapping[str, str]
    value: float


class SeriesPoint(NamedTuple):
    """A point with its name and its labels as Prometheus has them."""

    name: str
    labels: Labels
    value: float
    is_delta: bool


def series_points(points: Iterable[MetricPoint]) -> tuple[list[SeriesPoint], int]:
    """The points that can be kept, and how many cannot, for their names or labels. This may take
    0.1 s: it is for a thread.
    """
    kept: list[SeriesPoint] = []
    refused = 0
    for point in points:
        labels = _labels(point)
        name = PREFIX + _NOT_IN_NAMES.sub("_", point.name)
        if labels is None or not point.name or len(name) > MAX_CHARACTERS:
            refused += 1
        else:
            kept.append(SeriesPoint(name, labels, point.value, point.is_delta))
    return kept, refused


class TelemetrySeries:
    """dropped: points that are not kept, because they are too many or their names too long."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[_Key, float]] = {}
        self._of_instance: dict[Uuid, set[tuple[str, _Key]]] = {}
        self._client_ids: dict[Uuid, str] = {}
        self._count = 0
        self.dropped = 0

    def take(
        self,
        instance_id: Uuid,
        client_id: str | None,
        points: Sequence[SeriesPoint],
        refused: int = 0,
    ) -> None:
        """The points of one push. refused: further ones; see `series_points`."""
        self.dropped += refused
        self._client_ids[instance_id] = (client_id or "")[:MAX_CHARACTERS]
        own = self._of_instance.setdefault(instance_id, set())
        for point in points:
            name = point.name
            key = instance_id, point.labels
            series = self._by_name.setdefault(name, {})
            before = series.get(key)
            if before is None:
                if self._count >= MAX_SERIES:
                    self.dropped += 1
                    if not series:
                        del self._by_name[name]
                    continue
                self._count += 1
                own.add((name, key))
            series[key] = point.value + (before or 0.0) if point.is_delta else point.value

    def forget(self, instance_id: Uuid) -> None:
        """The client is known no more."""
        self._client_ids.pop(instance_id, None)
        for name, key in self._of_instance.pop(instance_id, ()):
            series = self._by_name[name]
            del series[key]
            self._count -= 1
            if not series:
                del self._by_name[name]

    def slices(self, size: int) -> Iterator[tuple[str, list[Sample]]]:
        """All series, those of one name in a row, at most so many samples at a time."""
        for name in sorted(self._by_name):
            pairs = iter(list(self._by_name.get(name, {}).items()))
            while some := list(islice(pairs, size)):
                yield name, [self._sample(key, value) for key, value in some]

    def _sample(self, key: _Key, value: float) -> Sample:
        instance_id, labels = key
        own = {
            "client_id": self._client_ids.get(instance_id, ""),
            "client_instance_id": uuid_to_string(instance_id),
        }
        return Sample({**dict(labels), **own}, value)


def _labels(point: MetricPoint) -> Labels | None:
    """The attributes as labels; None for too many or too long ones."""
    if len(point.attributes) > MAX_LABELS:
        return None
    labels = []
    for key, value in point.attributes:
        name = _NOT_IN_NAMES.sub("_", key)
        if not name or name[0].isdigit() or max(len(name), len(value)) > MAX_CHARACTERS:
            return None
        labels.append((name, value))
    return tuple(sorted(labels))
