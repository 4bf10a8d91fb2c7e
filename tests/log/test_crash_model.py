"""The crash model, a few hundred examples now and ten thousand in the slow run."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.log.crash_model import CrashMachine


class TestCrashes(CrashMachine.TestCase):  # type: ignore[misc]  # hypothesis makes the class
    settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(1500)
class TestCrashesAtLength(CrashMachine.TestCase):  # type: ignore[misc]  # as above
    settings = settings(max_examples=10_000, stateful_step_count=30, deadline=None)
