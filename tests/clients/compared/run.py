"""Runs a session on a broker and gives what its rows print."""

from __future__ import annotations

import shlex
import time
from typing import Any, Final

from tests.clients.compared.acts import settle
from tests.clients.compared.normal import normalised, sorted_members
from tests.clients.compared.row import Act, Row, Session, World
from tests.clients.kafka_tools import KafkaTools

AGAIN_S: Final = 30.0

Output = dict[str, Any]
"""What a row printed, as JSON has it: command, code, out and err (lines)."""


def run_session(
    session: Session, tools: KafkaTools, world: World, settles: bool = False
) -> dict[str, Output]:
    """The output of each row, by its name. settles: wait after each change until the broker
    knows of it.
    """
    outputs: dict[str, Output] = {}
    try:
        for step in session.steps:
            if isinstance(step, Act):
                step.run(world)
            else:
                assert step.name not in outputs, step.name
                outputs[step.name] = run_row(step, tools, world)
                if settles and step.changes:
                    settle(world)
    finally:
        while world.on_end:
            world.on_end.pop()()
    return outputs


def command_of(row: Row) -> str:
    """The command as the recording and the documentation show it."""
    return " ".join(part for part in (row.tool, row.server, row.arguments) if part)


def run_row(row: Row, tools: KafkaTools, world: World) -> Output:
    """Raises AssertionError if the text that it waits for does not come."""
    words = shlex.split(f"{row.server} {row.arguments}")
    words = [word.format_map(world.values) for word in words]
    deadline = time.monotonic() + AGAIN_S
    while True:
        code, out, err = tools.run([row.main_class, *words], row.stdin)
        if row.again in out + err:
            break
        assert time.monotonic() < deadline, f"{row.name}: no {row.again!r} in {out}{err}"
        time.sleep(0.2)
    known = {name: value for name, value in world.values.items() if len(value) > 3}
    if row.json:
        out = "\n".join(map(sorted_members, out.splitlines()))
    lines = [normalised(text, known, row.masks, row.sort) for text in (out, err)]
    return {"command": command_of(row), "code": code, "out": lines[0], "err": lines[1]}
