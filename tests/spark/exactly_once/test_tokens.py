"""Tokens and claims: their bytes, and which batch a token lets pass."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from spark_jobs.exactly_once.errors import SinkError
from spark_jobs.exactly_once.tokens import (
    Claim,
    EndOffsets,
    Token,
    claim_key,
    is_written,
    left_behind,
)

ID, OTHER = "query-a", "query-b"


def decide(
    token: Token | None,
    batch_id: int,
    query_id: str = ID,
    adopt: bool = False,
    ends: EndOffsets | None = None,
    is_new: bool = False,
) -> bool:
    wanted = Token(query_id, batch_id, 0, ends or {})
    return is_written(token, wanted, query_name="q", is_adopted=adopt, is_new=is_new)


def test_a_token_comes_back() -> None:
    token = Token(ID, 7, 1200, {"orders": {0: 10, 11: 2**40}})
    assert Token.decode(token.encode()) == token
    assert Token.decode(Token("", 0, 0).encode()) == Token("", 0, 0)
    keeper = Token(ID, 0, 0, keeper_id=2**40)
    assert Token.decode(keeper.encode()) == keeper
    left = Token(ID, 7, 1200, {"orders": {0: 10}}, left={"bills": {0: 3}})
    assert Token.decode(left.encode()) == left
    assert b"left" not in token.encode()  # as of earlier versions


def test_topics_that_are_no_longer_read() -> None:
    token = Token(ID, 7, 1200, {"orders": {0: 10}, "bills": {0: 3}}, left={"old": {0: 1}})
    assert left_behind(None, {"orders": {0: 10}}) == {}
    assert left_behind(token, {"orders": {0: 12}}) == {"bills": {0: 3}, "old": {0: 1}}
    assert left_behind(token, {"orders": {0: 12}, "bills": {0: 3}, "old": {0: 9}}) == {}


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"batch_id":"x"}', b"\xff", b"null"])
def test_what_is_no_token(value: bytes) -> None:
    with pytest.raises(SinkError, match="is not a token"):
        Token.decode(value)


def test_a_claim_comes_back() -> None:
    claim = Claim(1000, 3, 12, "abc")
    assert Claim.decode(claim.encode()) == claim
    assert [Claim.decode(value) for value in (b"", b"{}", b"[1,2]", b"\xff", b"null")] == [None] * 5


def test_the_keys_of_claims_differ_from_those_of_tokens() -> None:
    assert claim_key("spark-q", TopicPartition("t", 3)) == b"spark-q/claim/t-3"


@pytest.mark.parametrize(
    ("token", "batch_id", "written"),
    [
        pytest.param(None, 0, False, id="first batch of all"),
        pytest.param(Token(ID, 4, 9), 5, False, id="next batch"),
        pytest.param(Token(ID, 5, 9), 5, True, id="replayed after its commit"),
        pytest.param(Token("", 4, 9), 5, False, id="token without a query id"),
        pytest.param(Token("", 5, 9), 5, True, id="token without a query id, replayed"),
    ],
)
def test_batches_of_one_story(token: Token | None, batch_id: int, written: bool) -> None:
    assert decide(token, batch_id) is written
    assert decide(token, batch_id, query_id="") is written
    assert decide(token, batch_id, adopt=True) is written


@pytest.mark.parametrize(
    ("token", "batch_id", "why"),
    [
        pytest.param(None, 3, "no batch of query q was ever written", id="token lost"),
        pytest.param(Token(OTHER, 4, 9), 5, "with another checkpoint", id="foreign"),
        pytest.param(Token(OTHER, 9, 9), 5, "with another checkpoint", id="foreign, further"),
        pytest.param(Token(OTHER, 0, 9), 0, "with another checkpoint", id="new checkpoint"),
        pytest.param(Token(ID, 3, 9), 5, "newest batch of query q in the topic is 3", id="gap"),
        pytest.param(Token(ID, 6, 9), 5, "q wrote up to batch 6: .*older copy", id="older copy"),
        pytest.param(Token("", 6, 9), 0, "q wrote up to batch 6: the checkpoint is new", id="new"),
    ],
)
def test_a_checkpoint_and_a_topic_of_different_stories(
    token: Token | None, batch_id: int, why: str
) -> None:
    with pytest.raises(SinkError, match=why) as caught:
        decide(token, batch_id)
    assert "adopt_checkpoint=True" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert decide(token, batch_id, adopt=True) is False


ENDS, LATER = {"in": {0: 70}}, {"in": {0: 95}}


@pytest.mark.parametrize("query_id", [ID, ""])
@pytest.mark.parametrize("batch_id", [0, 5])
def test_the_same_batch_has_the_same_end_offsets(batch_id: int, query_id: str) -> None:
    """Spark plans a batch anew, up to the end of now, if its file in the checkpoint is lost."""
    token = Token(query_id, batch_id, 9, ENDS)
    assert decide(token, batch_id, query_id, ends=ENDS)
    with pytest.raises(SinkError, match="with other end offsets than the checkpoint has") as caught:
        decide(token, batch_id, query_id, ends=LATER)
    assert "adopt_checkpoint=True" in str(caught.value)
    assert not decide(token, batch_id, query_id, adopt=True, ends=LATER)
    assert decide(token, batch_id, ID)


def test_the_first_batch_without_a_query_id_and_end_offsets() -> None:
    """It may be another checkpoint's: Spark Connect tells no query id."""
    token = Token("", 0, 9)
    with pytest.raises(SinkError, match="nothing says whether this checkpoint wrote it") as caught:
        decide(token, 0, "")
    assert "give query_id= a name that only this checkpoint has" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert decide(token, 0, "own-name")
    assert decide(token, 0, "", is_new=True)
    assert not decide(token, 0, "", adopt=True)
    assert decide(Token("", 1, 9), 1, "")
