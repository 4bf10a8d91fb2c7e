"""`python -m tests.sim.replay SIMULATION SEED [LINES]`: run one seed again and print what happened,
the last LINES of it (200).
"""

from __future__ import annotations

import sys
import traceback

from tests.sim import broker_lives, quorum_world, replication_world
from tests.sim.broker_lives import BrokerLives
from tests.sim.quorum_world import QuorumWorld
from tests.sim.replication_world import ReplicationWorld
from tests.sim.simulation import SimulationFailure

WORLDS: dict[str, type[QuorumWorld] | type[BrokerLives] | type[ReplicationWorld]] = {
    quorum_world.NAME: QuorumWorld,
    broker_lives.NAME: BrokerLives,
    replication_world.NAME: ReplicationWorld,
}


def main(arguments: list[str]) -> int:
    """Returns 1 if the seed fails, 2 for wrong arguments."""
    if len(arguments) not in (2, 3) or arguments[0] not in WORLDS:
        print(__doc__, file=sys.stderr)
        return 2
    world = WORLDS[arguments[0]](int(arguments[1]), is_traced=True)
    failure: SimulationFailure | None = None
    try:
        world.run()
    except SimulationFailure as error:
        failure = error
    count = int(arguments[2]) if len(arguments) == 3 else 200
    print("\n".join(world.simulation.trace[-count:]))
    if failure is None:
        print(f"seed {arguments[1]} passes after {world.simulation.elapsed_ms} ms")
        return 0
    cause = failure.__cause__
    if cause is not None and not isinstance(cause, AssertionError):
        traceback.print_exception(cause)
    print(failure)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
