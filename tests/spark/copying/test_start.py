"""Whether checkpoint, tokens and source of a streaming copy tell one story."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.checkpoint import QueryLog
from spark_jobs.cluster import TopicFacts, Topics
from spark_jobs.copying.options import ResumeFrom
from spark_jobs.copying.start import Plan, Situation, decide, query_id
from spark_jobs.errors import StartRefused
from spark_jobs.exactly_once.tokens import Token
from spark_jobs.identity import Identity

TOPICS = {"orders": TopicFacts("aa", {0: 0, 1: 0}, {0: 100, 1: 50})}
ENDS = {"orders": {0: 60, 1: 30}}
IDENTITY = Identity("5f", "mirror", "host:1", batch_id=7, topics=TOPICS)
LOG = QueryLog(7, 7, {7: ENDS})
TOKEN = Token(query_id(IDENTITY), 7, 90, ENDS)
NEW = Situation("mirror", "m", "host:1", "/cp", TOPICS)
RUNS = replace(NEW, identity=IDENTITY, log=LOG, token=TOKEN)


def test_the_ways_to_begin_and_to_go_on() -> None:
    assert decide(NEW) == Plan("begin")
    assert decide(RUNS) == Plan("continue")
    before_the_first_batch = replace(RUNS, log=QueryLog(-1, -1, {}), token=None)
    assert decide(before_the_first_batch) == Plan("continue")
    after_the_commit = replace(RUNS, log=QueryLog(8, 7, {8: ENDS, 7: ENDS}))
    for batch_id in (7, 8):
        assert decide(replace(after_the_commit, token=replace(TOKEN, batch_id=batch_id)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"identity": None, "has_unknown_checkpoint": True}, "mirror did not make"),
        ({"identity": replace(IDENTITY, job="archive")}, "checkpoint of the job archive"),
        ({"identity": replace(IDENTITY, output="other:1")}, "belongs to other:1, not to host:1"),
        ({"identity": None, "log": QueryLog(-1, -1, {})}, "is missing or another"),
        ({"token": None}, "has no batch of query m"),
        ({"token": replace(TOKEN, query_id="77-1")}, "with another checkpoint than /cp"),
        ({"token": replace(TOKEN, batch_id=6)}, "would leave records out"),
        ({"token": replace(TOKEN, batch_id=8)}, "is older than host:1"),
        ({"topics": {}}, "not read any more. add orders"),
        (
            {"topics": {"orders": replace(TOPICS["orders"], topic_id="bb")}},
            "deleted and created again",
        ),
        (
            {"topics": {"orders": replace(TOPICS["orders"], earliest={0: 70, 1: 0})}},
            "10 offsets were deleted unread. --failOnDataLoss false",
        ),
    ],
)
def test_contradictions(changes: dict[str, object], why: str) -> None:
    with pytest.raises(StartRefused, match=why):
        decide(replace(RUNS, **changes))  # type: ignore[arg-type]


def test_data_loss_that_is_accepted_is_a_note() -> None:
    lossy = replace(
        RUNS,
        topics={"orders": replace(TOPICS["orders"], earliest={0: 70, 1: 0})},
        fail_on_data_loss=False,
    )
    plan = decide(lossy)
    assert (plan.action, len(plan.notes)) == ("continue", 1)


def test_resuming() -> None:
    lost = replace(NEW, token=TOKEN)
    plan = decide(replace(lost, resume_from="output"))
    assert plan == Plan("resume", ENDS, is_adopted=True)
    assert decide(replace(RUNS, resume_from="earliest")).positions == {"orders": {0: 0, 1: 0}}
    assert decide(replace(RUNS, token=None, resume_from="checkpoint")) == Plan("resume", ENDS)
    for situation, place in ((NEW, "output"), (lost, "checkpoint")):
        with pytest.raises(StartRefused, match="has no offsets to go on at"):
            decide(replace(situation, resume_from=place))  # type: ignore[arg-type]


def test_resuming_is_within_what_the_topics_have() -> None:
    topics = {
        "orders": TopicFacts("aa", {0: 70, 1: 0, 2: 4}, {0: 100, 1: 50, 2: 9}),
        "new": TopicFacts("cc", {0: 3}, {0: 8}),
    }
    plan = decide(replace(NEW, token=TOKEN, topics=topics, resume_from="output"))
    assert plan.positions == {"orders": {0: 70, 1: 30, 2: 4}, "new": {0: 3}}
    again = {"orders": TopicFacts("bb", {0: 0, 1: 0}, {0: 100, 1: 50})}
    recreated = decide(replace(RUNS, topics=again, resume_from="output"))
    assert recreated.positions == {"orders": {0: 0, 1: 0}}


def test_the_first_batch_after_a_resume_adopts_the_token() -> None:
    resumed = replace(IDENTITY, query=2, batch_id=-1)
    fresh = replace(RUNS, identity=resumed, log=QueryLog(-1, -1, {}))
    assert decide(fresh).is_adopted
    with pytest.raises(StartRefused, match="with another checkpoint"):
        decide(replace(fresh, log=QueryLog(0, 0, {0: ENDS})))


BOTH = {**TOPICS, "bills": TopicFacts("dd", {0: 0}, {0: 9})}
ALONE = replace(RUNS, topics=BOTH, identity=replace(IDENTITY, topics=BOTH))
LEFT = replace(ALONE, token=replace(TOKEN, left={"bills": {0: 7}}))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(LEFT, id="read again"),
        pytest.param(replace(LEFT, fail_on_data_loss=False), id="whatever is lost"),
        pytest.param(
            replace(
                ALONE,
                log=QueryLog(8, 7, {7: {**ENDS, "bills": {0: 7}}, 8: ENDS}),
                token=replace(TOKEN, end_offsets={**ENDS, "bills": {0: 7}}),
            ),
            id="the batch without it is only planned",
        ),
        pytest.param(
            replace(LEFT, log=QueryLog(8, 7, {7: ENDS, 8: {**ENDS, "bills": {0: 9}}})),
            id="a batch that repeats it is planned",
        ),
        pytest.param(
            replace(
                ALONE,
                log=QueryLog(-1, -1, {}),
                token=replace(TOKEN, query_id="5f-1", end_offsets={**ENDS, "bills": {0: 7}}),
                identity=replace(IDENTITY, query=2, starting=ENDS, batch_id=-1),
            ),
            id="resumed without it",
        ),
    ],
)
def test_a_topic_that_was_left_out_and_is_read_again(found: Situation) -> None:
    """Spark read it from its first offset, and all of it was copied twice."""
    why = "topic bills was not read for a while .* repeat up to 7 records. --resume-from output"
    with pytest.raises(StartRefused, match=why):
        decide(found)
    places: tuple[ResumeFrom, ...] = ("output", "checkpoint")
    for place in places if found.log.committed >= 0 else places[:1]:
        resumed = decide(replace(found, resume_from=place))
        assert resumed.positions == {**ENDS, "bills": {0: 7}}


def test_a_topic_that_an_earlier_version_left_out() -> None:
    with pytest.raises(StartRefused, match="nothing says how far it was copied: going on would"):
        decide(ALONE)
    assert decide(replace(ALONE, resume_from="output")).positions == {**ENDS, "bills": {0: 0}}


def test_topics_that_are_added() -> None:
    """They are new, or their first batch is in the target and Spark has not noted it."""
    ends = {**ENDS, "bills": {0: 7}}
    assert decide(replace(RUNS, topics=BOTH)).action == "continue"
    noted = replace(ALONE, log=QueryLog(8, 7, {7: ENDS, 8: ends}))
    written = replace(TOKEN, batch_id=8, end_offsets=ends)
    assert decide(replace(noted, token=written)).action == "continue"
    assert decide(replace(noted, identity=IDENTITY)).action == "continue"


COPIES = {"orders": ("copy", "also")}
THERE = {
    "copy": TopicFacts("c1", {0: 0}, {0: 9}),
    "also": TopicFacts("c2", {0: 0, 1: 0}, {0: 0, 1: 1}),
}
GONE = {"also": THERE["also"]}
EMPTY = {**THERE, "copy": TopicFacts("c9", {0: 0}, {0: 0})}
REFILLED = {**THERE, "copy": TopicFacts("c9", {0: 0}, {0: 90})}
WRITTEN = replace(
    RUNS,
    identity=replace(IDENTITY, targets={"copy": "c1", "also": "c2"}),
    targets=COPIES,
    there=THERE,
)


@pytest.mark.parametrize("there", [GONE, EMPTY, REFILLED], ids=["gone", "empty", "refilled"])
def test_a_target_that_was_deleted(there: Topics) -> None:
    """It was created again, and the copy went on behind the lost records."""
    found = replace(WRITTEN, there=there)
    with pytest.raises(StartRefused, match=r"topic copy was deleted or .* of orders"):
        decide(found)
    again = decide(replace(found, resume_from="output"))
    assert again.positions == {"orders": {0: 0, 1: 0}}
    assert again.notes == ("resuming although topic copy no longer has what was written of orders",)
    assert decide(replace(found, resume_from="checkpoint")).positions == ENDS


def test_targets_that_are_still_there() -> None:
    assert decide(WRITTEN) == Plan("continue")
    assert decide(replace(WRITTEN, resume_from="output")) == Plan("resume", ENDS, is_adopted=True)
    old = replace(WRITTEN, identity=IDENTITY)  # of an earlier version
    assert decide(replace(old, there=REFILLED)).action == "continue"
    with pytest.raises(StartRefused, match="topic copy was deleted"):
        decide(replace(old, there=GONE))
    without_ids = {name: replace(facts, topic_id="") for name, facts in THERE.items()}
    assert decide(replace(WRITTEN, there=without_ids)).action == "continue"


def test_targets_that_have_nothing_yet() -> None:
    begun = replace(WRITTEN, there={}, log=QueryLog(-1, -1, {}), token=None)
    assert decide(begun).action == "continue"
    added = replace(WRITTEN, topics=BOTH, targets={**COPIES, "bills": ("copy-of-bills",)})
    assert decide(added).action == "continue"


def test_targets_that_were_made_again_by_a_resume() -> None:
    """The ids are those of before, until a batch of the resumed query is noted."""
    resumed = replace(WRITTEN.identity or IDENTITY, query=2, batch_id=-1, starting=ENDS)
    before = replace(WRITTEN, identity=resumed, log=QueryLog(-1, -1, {}), there=REFILLED)
    assert decide(before).is_adopted
    assert decide(replace(before, there=EMPTY)).is_adopted
    assert decide(replace(before, resume_from="output")).positions == {"orders": {0: 0, 1: 0}}
    first = replace(TOKEN, query_id=query_id(resumed), batch_id=0)
    behind = replace(before, log=QueryLog(0, -1, {0: ENDS}), token=first)
    assert decide(behind).action == "continue"
