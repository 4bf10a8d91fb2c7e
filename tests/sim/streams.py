"""`kbroker.client.channel.streams` on the simulated network: a node's id is its port."""

from __future__ import annotations

from kbroker.client.channel.streams import StreamReceiver
from tests.sim.network import SimNetwork, SimStream


class SimStreams:
    """Opens connections of one node."""

    def __init__(self, network: SimNetwork, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    def __call__(self, host: str, port: int, receiver: StreamReceiver) -> SimStream:
        """See `StreamOpener`. host is the same for all nodes."""
        return self._network.open(self._node_id, port, receiver)
