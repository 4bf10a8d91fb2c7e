"""The brokers that a leader knows, and the proposals that it makes, for tests of the ISR."""

from __future__ import annotations

from kbroker.replication.leaders.isr import IsrProposal, ProposalOwner


class Brokers:
    """`isr.ClusterBrokers` of a test. epochs: of the brokers that are registered and not fenced."""

    def __init__(self, epochs: dict[int, int]) -> None:
        self.epochs = epochs
        self.shutting_down: set[int] = set()

    def live_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id)

    def is_shutting_down(self, broker_id: int) -> bool:
        return broker_id in self.shutting_down


class Proposals:
    """An `isr.ProposalQueue` that keeps what was submitted. unanswered: the oldest first."""

    def __init__(self) -> None:
        self.sent: list[IsrProposal] = []
        self.unanswered: list[IsrProposal] = []

    def submit(self, owner: ProposalOwner, proposal: IsrProposal) -> bool:
        self.sent.append(proposal)
        self.unanswered.append(proposal)
        return True
