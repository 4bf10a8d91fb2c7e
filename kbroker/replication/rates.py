"""The arithmetic of quotas: Kafka's Rate over samples, its TokenBucket, and the throttle times that
follow from them.

Source: Rate, SampledStat, TokenBucket and QuotaUtils of Kafka 4.3.1. Values are summed in Kafka's
order, so results equal Kafka's to the last bit. now_ms: of a steady clock.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

MAX_THROTTLE_MS: Final = 2**31 - 1
"""Throttle times are int32 in responses."""


class QuotaWindow(NamedTuple):
    """How far a rate looks back. samples: `quota.window.num`; size_ms: of one sample, from
    `quota.window.size.seconds`. Kafka's default is 10 whole samples and the current one.
    """

    samples: int = 11
    size_ms: int = 1000


class _Sample:
    """Written for every request: not a Struct, whose attributes take longer to set."""

    __slots__ = ("last_event_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_event_ms = now_ms
        self.value = 0.0


class SampledRate:
    """Units per second over a window. A sample ends with the first value after its time; one that
    overlaps the window counts as a whole.
    """

    __slots__ = ("_current", "_samples", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value, which is negative to take an earlier one back."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._window.size_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.last_event_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """The rate as of now."""
        self._purge(now_ms)
        total = 0.0
        for sample in self._samples:
            total += sample.value
        return total / (self.window_ms(now_ms) / 1000.0)

    def window_ms(self, now_ms: int) -> int:
        """The time that the rate divides by: since the start of the oldest sample, but never less
        than all samples but the current one.
        """
        self._purge(now_ms)
        samples, size_ms = self._samples, self._window.size_ms
        if not samples:
            samples.append(_Sample(now_ms))
        elapsed_ms = now_ms - min(sample.start_ms for sample in samples)
        missing = self._window.samples - 1 - elapsed_ms // size_ms
        if missing > 0:
            elapsed_ms += missing * size_ms
        return max(elapsed_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long nothing may be recorded until the rate is down to the bound; 0 if it is not
        above.
        """
        rate = self.measure(now_ms)
        if rate <= bound:
            return 0
        if bound <= 0:
            return MAX_THROTTLE_MS
        return rounded_ms((rate - bound) / bound * self.window_ms(now_ms))

    def _advance(self, now_ms: int) -> _Sample:
        """The next sample of the ring, which has one more than the window, for the one that
        overlaps its start.
        """
        samples = self._samples
        self._current = (self._current + 1) % (self._window.samples + 1)
        if self._current >= len(samples):
            samples.append(_Sample(now_ms))
        else:
            samples[self._current].reset(now_ms)
        return samples[self._current]

    def _purge(self, now_ms: int) -> None:
        expired_ms = self._window.samples * self._window.size_ms
        for sample in self._samples:
            if now_ms - sample.last_event_ms >= expired_ms:
                sample.reset(now_ms)


class SimpleRate(SampledRate):
    """As SampledRate, but divides by the time since the oldest sample began, at least one sample,
    so that the first values after a pause do not look like a burst (Kafka's SimpleRate).
    """

    __slots__ = ()

    def window_ms(self, now_ms: int) -> int:
        """The time that the rate divides by."""
        self._purge(now_ms)
        begun_ms = min((sample.start_ms for sample in self._samples), default=now_ms)
        return max(now_ms - begun_ms, self._window.size_ms, 1)


class TokenBucket:
    """Permits that refill at a rate up to a burst (KIP-599); full at first. Negative: overdrawn."""

    __slots__ = ("_last_update_ms", "_tokens", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._tokens = 0.0
        self._last_update_ms: int | None = None

    def record(self, permits: float, bound: float, now_ms: int) -> None:
        """Take permits. bound: permits per second."""
        self._refill(bound, now_ms)
        self._tokens = min(self._burst(bound), self._tokens - permits)

    def tokens(self, bound: float, now_ms: int) -> float:
        """The permits that are left."""
        self._refill(bound, now_ms)
        return self._tokens

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long until the bucket is no longer overdrawn; 0 if it is not."""
        tokens = self.tokens(bound, now_ms)
        return 0 if tokens >= 0 else rounded_ms(-tokens / bound * 1000)

    def _burst(self, bound: float) -> float:
        return self._window.samples * (self._window.size_ms / 1000.0) * bound

    def _refill(self, bound: float, now_ms: int) -> None:
        burst = self._burst(bound)
        if self._last_update_ms is None:
            self._tokens = burst
        else:
            refilled = self._tokens + bound * ((now_ms - self._last_update_ms) / 1000.0)
            self._tokens = min(burst, refilled)
        self._last_update_ms = now_ms


def rounded_ms(milliseconds: float) -> int:
    """As Java's Math.round, within what a throttle time may be."""
    if math.isnan(milliseconds):
        return 0
    if milliseconds >= MAX_THROTTLE_MS:
        return MAX_THROTTLE_MS
    return max(math.floor(milliseconds + 0.5), 0)
