"""Sessions of brokers: Kafka's own answers over time, and which broker is forgotten first."""

from __future__ import annotations

from kbroker.controller.brokers.broker_sessions import BrokerIncarnation, BrokerSessions
from tests.controller.decisions import Case, compare


def test_kafkas_sessions() -> None:
    """The file counts in ns; the core does not mind, since only differences count."""

    def decide(case: Case) -> object:
        sessions = BrokerSessions(case["sessionTimeoutNs"])
        shown: list[object] = []
        for step in case["steps"]:
            now = step["nowNs"]
            match step["do"]:
                case "contact":
                    sessions.contact(BrokerIncarnation(step["id"], step["epoch"]), now)
                case "hasValidSession":
                    broker = BrokerIncarnation(step["id"], step["epoch"])
                    shown.append((sessions.is_valid(broker, now), sessions.contact_ms(broker)))
                case "expire":
                    removed = []
                    while (stale := sessions.remove_expired(now)) is not None:
                        removed.append(stale)
                    shown.append(sorted(removed))
        return shown

    def expected(case: Case) -> object:
        shown: list[object] = []
        for step in case["steps"]:
            if step["do"] == "hasValidSession":
                shown.append((step["answer"], step["contactNs"]))
            elif step["do"] == "expire":
                shown.append(sorted((number, epoch) for number, epoch in step["removed"]))
        return shown

    compare("broker-sessions", 200, decide, expected)


def test_the_broker_that_is_silent_for_longest_is_forgotten_first() -> None:
    sessions = BrokerSessions(9)
    brokers = [BrokerIncarnation(number, 5) for number in range(3)]
    for now_ms, broker in enumerate(brokers):
        sessions.contact(broker, now_ms)
    sessions.contact(brokers[0], 3)
    assert sessions.remove_expired(10) is None
    removed = [sessions.remove_expired(20) for _ in range(4)]
    assert removed == [brokers[1], brokers[2], brokers[0], None]


def test_a_session_ends_after_its_timeout_not_with_it() -> None:
    sessions = BrokerSessions(9)
    broker = BrokerIncarnation(1, 5)
    assert not sessions.is_valid(broker, 0)
    sessions.contact(broker, 100)
    assert [sessions.is_valid(broker, now_ms) for now_ms in (0, 100, 109, 110)] == [
        True,
        True,
        True,
        False,
    ]
    assert not sessions.is_valid(BrokerIncarnation(1, 6), 100)
