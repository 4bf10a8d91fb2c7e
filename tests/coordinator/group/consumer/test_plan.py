"""The assignor of a group by its members' votes; epochs and targets are in `test_groups`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.coordinator.group.consumer.plan import assignor_name

SETTINGS: Any = SimpleNamespace(group_consumer_assignors=("uniform", "range"))


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        pytest.param([], "uniform", id="no members"),
        pytest.param([None, None], "uniform", id="nobody asks: the first configured one"),
        pytest.param([None, None, "range"], "range", id="who does not ask has no vote"),
        pytest.param(["uniform", "range", "range"], "range", id="most votes"),
        pytest.param(["uniform", "range"], "range", id="of a tie the first by name"),
        pytest.param(["sticky", "sticky", "range"], "range", id="one that is unknown"),
        pytest.param(["sticky"], "uniform", id="only unknown ones"),
    ],
)
def test_the_assignor_most_members_ask_for(wishes: list[str | None], expected: str) -> None:
    members: Any = {
        str(number): SimpleNamespace(server_assignor=wish) for number, wish in enumerate(wishes)
    }
    assert assignor_name(members, SETTINGS) == expected
