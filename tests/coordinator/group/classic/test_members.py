"""The members of a classic group: the protocols that all of them support, who replaces whom, and a
model by seed.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.coordinator.group.classic.member import Member
from kbroker.coordinator.group.classic.members import Members
from kbroker.coordinator.group.membership.join import Join
from kbroker.coordinator.runtime.deadlines import Deadline
from kbroker.model import InvariantError
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.consumer_protocol import ConsumerProtocolSubscription


def member(
    member_id: str,
    *protocols: str,
    instance_id: str | None = None,
    rebalance_timeout_ms: int = 1,
    metadata: bytes = b"",
) -> Member:
    return Member(
        member_id=member_id,
        instance_id=instance_id,
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=[(name, metadata) for name in protocols],
        session=Deadline(lambda _: []),
    )


def members(*each: Member) -> Members:
    made = Members()
    for one in each:
        made.add(one)
    return made


def join(member_id: str, *protocols: str, protocol_type: str = "consumer") -> Join:
    return Join(
        member_id=member_id,
        instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        protocol_type=protocol_type,
        protocols=[(name, b"") for name in protocols],
        version=9,
        waiter=None,  # type: ignore[arg-type]  # nothing is answered here
    )


def test_the_protocol_most_members_like_best_of_those_that_all_know() -> None:
    made = members(member("a", "x", "y", "z"), member("b", "z", "y"), member("c", "y", "z"))
    assert made.select_protocol("g") == "y"
    made.add(member("d", "z", "y"))
    assert made.select_protocol("g") == "y", "of a tie the one that was voted for first"
    made.add(member("e", "z", "y"))
    assert made.select_protocol("g") == "z"


def test_members_without_a_common_protocol_break_an_invariant() -> None:
    with pytest.raises(InvariantError):
        members(member("a", "x"), member("b", "y")).select_protocol("g")


def test_a_protocol_named_twice_counts_once() -> None:
    made = members(member("a", "x", "x"), member("b", "y"))
    assert not made.supports(join("n", "x"), "consumer")
    made.remove(made.members["b"])
    assert made.select_protocol("g") == "x"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(join("n", "x"), True, id="known to all"),
        pytest.param(join("n", "w", "x"), True, id="one of its own"),
        pytest.param(join("n", "y"), False, id="known to one"),
        pytest.param(join("n"), False, id="none"),
        pytest.param(join("n", "x", protocol_type="connect"), False, id="another type"),
        pytest.param(join("a", "x"), True, id="a member of several"),
        pytest.param(join("a", "w"), False, id="a member of several with a new one"),
    ],
)
def test_who_may_join(asked: Join, expected: bool) -> None:
    made = members(member("a", "x", "y"), member("b", "x"))
    assert made.supports(asked, "consumer") is expected


def test_an_empty_group_takes_any_type_and_protocol() -> None:
    assert members().supports(join("n", "w", protocol_type="connect"), None)
    assert not members().supports(join("n"), None)
    assert not members().supports(join("n", "w", protocol_type=""), None)


def test_the_only_member_may_change_all_its_protocols() -> None:
    made = members(member("a", "x"))
    assert made.supports(join("a", "w"), "consumer")
    assert not made.supports(join("a"), "consumer")
    made.set_protocols(made.members["a"], [("w", b"")])
    assert made.select_protocol("g") == "w"


@pytest.mark.parametrize(
    ("member_id", "instance_id", "error"),
    [
        ("a", None, ErrorCode.NONE),
        ("n", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("s", "i", ErrorCode.NONE),
        ("s", None, ErrorCode.NONE),
        ("a", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("n", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("s", "other", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_a_member(member_id: str, instance_id: str | None, error: ErrorCode) -> None:
    made = members(member("a", "x"), member("s", "x", instance_id="i"))
    assert made.check(member_id, instance_id) is error


def test_a_static_member_that_comes_back_takes_its_former_place() -> None:
    old, new = member("b", "x", instance_id="i"), member("n", "y", "x", instance_id="i")
    made = members(member("a", "x"), old, member("c", "x"))
    assert made.protocol_if_replaced("g", old, new) == "x"
    assert list(made.members) == ["a", "b", "c"], "nothing has changed yet"
    made.replace(old, new)
    assert list(made.members) == ["a", "n", "c"]
    assert made.static_members == {"i": "n"}
    assert made.check("b", "i") is ErrorCode.FENCED_INSTANCE_ID
    made.remove(made.members["n"])
    assert made.static_members == {}


def test_the_longest_rebalance_timeout() -> None:
    assert members().rebalance_timeout_ms() == 0
    both = (member("a", "x", rebalance_timeout_ms=5), member("b", "x", rebalance_timeout_ms=3))
    assert members(*both).rebalance_timeout_ms() == 5


def test_topics_of_all_members_or_none_if_one_cannot_be_read() -> None:
    def subscribed(*topics: str) -> bytes:
        return b"\0\0" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0)

    made = members(
        member("a", "x", metadata=subscribed("t", "u")), member("b", "x", metadata=subscribed("u"))
    )
    assert made.subscribed_topics("x") == {"t", "u"}
    made.add(member("c", "x", metadata=b"\xff"))
    assert made.subscribed_topics("x") is None


@pytest.mark.parametrize("seed", range(20))
def test_common_protocols_against_counting_them_anew(seed: int) -> None:
    random = Random(seed)
    made, model = Members(), dict[str, list[str]]()
    for number in range(120):
        protocols = ["common", *random.sample("xyz", random.randrange(4))]
        name = random.choice(list(model)) if model and random.random() < 0.7 else f"m{number}"
        known = made.members.get(name)
        if known is None:
            made.add(member(name, *protocols))
            model[name] = protocols
        elif random.random() < 0.4:
            made.remove(known)
            del model[name]
        elif random.random() < 0.5:
            made.set_protocols(known, [(each, b"") for each in protocols])
            model[name] = protocols
        else:
            made.protocol_if_replaced("g", known, member(name, *protocols))
        for each in "xyz":
            in_all = len(model) > 1 and all(each in one for one in model.values())
            if len(model) > 1:
                assert made.supports(join("n", each), "consumer") is in_all
        if model:
            assert made.select_protocol("g") in set.intersection(*map(set, model.values()))
