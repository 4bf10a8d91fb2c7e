"""The collector's thresholds while a seed runs, and after it."""

from __future__ import annotations

import gc

import pytest

from kbroker.simulation.garbage import COLLECTION_THRESHOLD, rare_collections


def test_collections_are_rare_until_the_seed_ends() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        assert gc.get_threshold() == (COLLECTION_THRESHOLD, *before[1:])
        raise ZeroDivisionError
    assert gc.get_threshold() == before
