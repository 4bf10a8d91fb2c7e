"""What a start refuses, in one line that says what would be lost or repeated, and what it plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.archive.commits import NO_BATCH, Commit
from spark_jobs.archive.start import Plan, Situation, decide
from spark_jobs.checkpoint import Offsets, QueryLog
from spark_jobs.cluster import TopicFacts
from spark_jobs.errors import StartRefused
from spark_jobs.identity import Identity

LAYOUT = ("topic", "date")
NOW = {"t": TopicFacts("id-t", {0: 0, 1: 0}, {0: 100, 1: 80})}
AT = {"t": {0: 60, 1: 40}}
IDENTITY = Identity("c", "archive", "/old/out", 1, {}, 5, NOW)
COMMIT = Commit(9, "c", 1, 5, LAYOUT, AT, {"t": "id-t"}, {}, (), (), 100, 4096)
LOG = QueryLog(5, 5, {4: {"t": {0: 30, 1: 40}}, 5: AT})
FIRST = Commit(1, "c", 1, NO_BATCH, LAYOUT, {})

EMPTY = Situation("/out", "/out.checkpoint", LAYOUT, NOW)
STOPPED = replace(EMPTY, identity=IDENTITY, log=LOG, commit=COMMIT, records=100)
"""An archive that ended in order after batch 5."""


def refusal(found: Situation) -> str:
    with pytest.raises(StartRefused) as raised:
        decide(found)
    text = str(raised.value)
    assert raised.value.exit_code == 2
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("found", "action"),
    [
        pytest.param(EMPTY, "begin", id="nothing there"),
        pytest.param(replace(EMPTY, commit=FIRST), "begin", id="ended before its identity"),
        pytest.param(
            replace(EMPTY, commit=FIRST, identity=replace(IDENTITY, batch_id=-1)),
            "continue",
            id="ended before its first batch",
        ),
        pytest.param(
            replace(EMPTY, commit=FIRST, identity=IDENTITY, log=QueryLog(0, -1, {0: AT})),
            "continue",
            id="ended in its first batch",
        ),
        pytest.param(STOPPED, "continue", id="ended in order"),
        pytest.param(
            replace(STOPPED, log=QueryLog(6, 5, {5: AT, 6: {"t": {0: 99, 1: 70}}})),
            "continue",
            id="ended in a batch",
        ),
        pytest.param(
            replace(STOPPED, log=QueryLog(5, 4, {4: {"t": {0: 30, 1: 40}}, 5: AT})),
            "continue",
            id="ended before Spark noted the batch",
        ),
        pytest.param(replace(STOPPED, topics=None), "continue", id="cluster cannot be asked"),
        pytest.param(
            replace(STOPPED, topics={**NOW, "u": TopicFacts("id-u", {0: 0}, {0: 9})}),
            "continue",
            id="a topic more",
        ),
    ],
)
def test_starts_that_are_right(found: Situation, action: str) -> None:
    plan = decide(found)
    assert (plan.action, plan.notes) == (action, ())


def test_a_lost_checkpoint() -> None:
    text = refusal(replace(STOPPED, identity=None, log=QueryLog(-1, -1, {})))
    assert "/out holds 100 records and its checkpoint /out.checkpoint is missing" in text
    assert "--resume-from output goes on where the output ends" in text


def test_a_lost_output() -> None:
    text = refusal(replace(STOPPED, commit=None))
    assert "/out.checkpoint says that offsets up to t-0:60, t-1:40 are archived" in text
    assert "going on would leave out up to 100 records" in text
    assert "--resume-from earliest" in text and "--resume-from checkpoint" in text


def test_a_lost_output_of_a_query_that_resumed() -> None:
    """It has no batch yet, and begins where the records before it were archived."""
    resumed = replace(IDENTITY, query=2, starting=AT, batch_id=-1)
    found = replace(EMPTY, identity=resumed, begun=AT)
    assert "going on would leave out up to 100 records" in refusal(found)
    assert decide(replace(found, resume_from="checkpoint")) == Plan("resume", AT)
    assert decide(replace(found, resume_from="earliest")).positions == {"t": {0: 0, 1: 0}}
    anew = replace(resumed, starting={"t": {0: 0, 1: 0}})
    assert decide(replace(EMPTY, identity=anew)).action == "begin"


def test_a_lost_identity() -> None:
    found = replace(EMPTY, has_lost_identity=True)
    for commit in (None, FIRST):
        text = refusal(replace(found, commit=commit))
        assert "/out.checkpoint has lost its identity.json, and /out has none of the rec" in text
        assert "--resume-from earliest" in text and "another --checkpoint" in text
    assert decide(replace(found, resume_from="earliest")).action == "resume"
    text = refusal(replace(found, commit=COMMIT, records=100))
    assert "/out holds 100 records and its checkpoint" in text


def test_a_foreign_output() -> None:
    assert "name another --output" in refusal(replace(EMPTY, foreign="/out holds a.txt"))
    other = replace(COMMIT, checkpoint_id="d")
    text = refusal(replace(STOPPED, commit=other))
    assert "/out was written with another checkpoint than /out.checkpoint" in text
    assert "which belongs to /old/out" in text


def test_a_foreign_checkpoint() -> None:
    assert "no identity.json" in refusal(replace(EMPTY, has_unknown_checkpoint=True))
    mirror = replace(IDENTITY, job="mirror")
    assert "the checkpoint of the job mirror" in refusal(replace(STOPPED, identity=mirror))


def test_another_layout_would_hide_the_older_rows() -> None:
    for resume_from in (None, "output"):
        found = replace(STOPPED, layout=("topic",), resume_from=resume_from)
        assert "has the layout topic,date: with topic beside it readers would miss its 100" in (
            refusal(found)
        )
    assert decide(replace(EMPTY, commit=FIRST, layout=())).action == "begin"


BEGUN = replace(
    EMPTY,
    identity=replace(IDENTITY, batch_id=-1, topics={}),
    commit=replace(FIRST, topic_ids={"t": "id-t", "u": "id-u"}),
)
"""An archive of which nothing is stored."""


def test_an_output_without_records_takes_another_layout() -> None:
    failed = replace(BEGUN, log=QueryLog(0, -1, {0: AT}))
    of_markers = replace(STOPPED, commit=replace(COMMIT, records=0), records=0)
    for found in (BEGUN, failed, of_markers):
        other = replace(found, layout=("topic",))
        assert decide(other).action == "continue"
        assert decide(replace(other, resume_from="earliest")).action == "resume"


@pytest.mark.parametrize("topic_id", ["id-2", ""])
@pytest.mark.parametrize("begun", [{}, {"t": {0: 0}}, {"t": {0: 0, 1: 0}, "v": {0: 7}}])
def test_an_empty_topic_that_was_created_again(topic_id: str, begun: Offsets) -> None:
    """Spark goes on at its first offset. Some brokers know no ids."""
    topics = {"t": TopicFacts(topic_id, {0: 0, 1: 0}, {0: 9, 1: 9})}
    plan = decide(replace(BEGUN, begun=begun, topics=topics))
    assert plan == Plan("begin" if topic_id else "continue")


@pytest.mark.parametrize(
    "found",
    [
        replace(BEGUN, begun={"t": {0: 0, 1: 5}}),
        replace(BEGUN, begun={"t": {0: 0, 1: 0, 2: 0}}),
        replace(BEGUN, begun={"t": {0: 0, 1: 0}}, log=QueryLog(0, -1, {0: AT})),
    ],
    ids=["behind its first record", "fewer partitions", "in its first batch"],
)
def test_a_topic_that_was_created_again_before_its_first_batch(found: Situation) -> None:
    topics = {"t": TopicFacts("id-2", {0: 0, 1: 0}, {0: 9, 1: 9})}
    text = refusal(replace(found, topics=topics))
    assert text.startswith(
        "topic t was deleted and created again before a record of it was in /out"
    )
    plan = decide(replace(found, topics=topics, resume_from="earliest"))
    assert plan == Plan("resume", {"t": {0: 0, 1: 0}}, ("t",))


def test_an_output_that_is_an_older_copy() -> None:
    older = replace(COMMIT, batch_id=4, positions={"t": {0: 30, 1: 40}})
    text = refusal(replace(STOPPED, commit=older))
    assert "/out is older than /out.checkpoint (batch 4 and 5)" in text
    assert "would leave out 30 records" in text
    assert "is older than" in refusal(replace(STOPPED, identity=replace(IDENTITY, query=2)))


def test_a_checkpoint_that_is_an_older_copy() -> None:
    newer = replace(COMMIT, batch_id=7, positions={"t": {0: 90, 1: 40}})
    text = refusal(replace(STOPPED, commit=newer))
    assert "/out.checkpoint is older than /out (batch 5 and 7)" in text
    assert "would repeat or lose 30 records" in text


def test_batches_of_one_number_with_other_offsets() -> None:
    other = replace(COMMIT, positions={"t": {0: 61, 1: 40}})
    assert "is older than" in refusal(replace(STOPPED, commit=other))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (TopicFacts("id-2", {0: 0, 1: 0}, {0: 500, 1: 500}), "was deleted and created again"),
        (TopicFacts("id-t", {0: 70, 1: 40}, {0: 100, 1: 80}), "topic t was truncated: 10 offsets"),
        (TopicFacts("", {0: 0}, {0: 100}), "topic t has 1 partition and had 2"),
        (TopicFacts("id-t", {0: 0, 1: 0}, {0: 10, 1: 80}), "ends at offset 10, before 60"),
    ],
    ids=["recreated", "truncated", "shrunk", "ends before"],
)
def test_topics_that_changed(facts: TopicFacts, said: str) -> None:
    text = refusal(replace(STOPPED, topics={"t": facts}))
    assert said in text and "--resume-from" in text


def test_a_topic_that_is_not_read_any_more() -> None:
    """So says a second topic archived into the output of the first."""
    text = refusal(replace(STOPPED, topics={"u": TopicFacts("id-u", {0: 0}, {0: 9})}))
    assert "topic t is part of it and not read any more. add t to --subscribe" in text


WITH_U = {**NOW, "u": TopicFacts("id-u", {0: 0}, {0: 9})}
BOTH = replace(STOPPED, topics=WITH_U, commit=replace(COMMIT, positions={**AT, "u": {0: 7}}))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(BOTH, "topic u was not read", id="read again"),
        pytest.param(
            replace(BOTH, topics=None, log=QueryLog(6, 5, {5: AT, 6: {**AT, "u": {0: 5}}})),
            "topic u was not read",
            id="planned already",
        ),
        pytest.param(
            replace(
                BOTH,
                commit=replace(BOTH.commit or COMMIT, batch_id=NO_BATCH),
                log=QueryLog(-1, -1, {}),
                begun=AT,
            ),
            "topic u was not read",
            id="before the first batch",
        ),
        pytest.param(
            replace(BOTH, log=QueryLog(5, 5, {5: {"u": {0: 7}}})),
            "topic t was not read for a while and Spark has forgotten where it was: going on would "
            "repeat up to 100 records",
            id="several partitions",
        ),
        pytest.param(
            replace(BOTH, log=QueryLog(5, 5, {5: {}})), "topic t (and 1 more topics)", id="topics"
        ),
    ],
)
def test_a_topic_that_spark_would_take_for_a_new_one(found: Situation, said: str) -> None:
    text = refusal(found)
    assert said in text and "--resume-from output" in text and "/out.checkpoint" in text


@pytest.mark.parametrize(
    "found",
    [
        replace(BOTH, log=QueryLog(5, 5, {5: {**AT, "u": {0: 7}}})),
        replace(BOTH, topics=None),
        replace(BOTH, commit=replace(COMMIT, positions={**AT, "u": {0: 0}})),
        replace(BOTH, topics=NOW, fail_on_data_loss=False),
    ],
    ids=["known to Spark", "cluster cannot be asked", "nothing archived", "still left out"],
)
def test_topics_that_are_not_read_again(found: Situation) -> None:
    assert decide(found).action == "continue"


def test_data_loss_that_is_accepted_is_a_note() -> None:
    truncated = {"t": TopicFacts("id-t", {0: 70, 1: 40}, {0: 100, 1: 80})}
    plan = decide(replace(STOPPED, topics=truncated, fail_on_data_loss=False))
    assert plan.action == "continue" and "10 offsets" in plan.notes[0]
    again = {"t": TopicFacts("id-2", {0: 0, 1: 0}, {0: 500, 1: 500})}
    refusal(replace(STOPPED, topics=again, fail_on_data_loss=False))


def test_resume_from_the_output_without_its_checkpoint() -> None:
    found = replace(STOPPED, identity=None, log=QueryLog(-1, -1, {}), resume_from="output")
    assert decide(found) == Plan("resume", AT)


def test_resume_fills_what_is_not_named_and_stays_within_the_log() -> None:
    topics = {
        "t": TopicFacts("id-t", {0: 70, 1: 0, 2: 3}, {0: 100, 1: 30, 2: 9}),
        "u": TopicFacts("id-u", {0: 4}, {0: 9}),
    }
    plan = decide(replace(STOPPED, topics=topics, resume_from="output"))
    assert plan.positions == {"t": {0: 70, 1: 0, 2: 3}, "u": {0: 4}}
    assert "t" in plan.recreated  # partition 1 ends before the output does
    same = replace(
        STOPPED, topics={**topics, "t": replace(topics["t"], latest={0: 100, 1: 40, 2: 9})}
    )
    plan = decide(replace(same, resume_from="output"))
    assert plan.positions == {"t": {0: 70, 1: 40, 2: 3}, "u": {0: 4}}
    assert plan.recreated == () and "10 offsets" in plan.notes[0]


@pytest.mark.parametrize(
    ("found", "positions"),
    [
        (replace(STOPPED, resume_from="earliest"), {"t": {0: 0, 1: 0}}),
        (replace(STOPPED, resume_from="group", group={"t": {1: 77}}), {"t": {0: 0, 1: 77}}),
        (replace(STOPPED, commit=None, resume_from="checkpoint"), AT),
        (replace(STOPPED, resume_from="output", topics=None), AT),
    ],
    ids=["earliest", "group", "checkpoint", "cluster unknown"],
)
def test_resume_from(found: Situation, positions: object) -> None:
    assert decide(found) == Plan("resume", positions)  # type: ignore[arg-type]


def test_a_topic_that_was_created_again_is_another_generation() -> None:
    again = {"t": TopicFacts("id-2", {0: 2, 1: 0}, {0: 500, 1: 500})}
    for resume_from in ("earliest", "output"):
        plan = decide(replace(STOPPED, topics=again, resume_from=resume_from))
        assert (plan.positions, plan.recreated) == ({"t": {0: 2, 1: 0}}, ("t",))
    lost = replace(STOPPED, identity=None, log=QueryLog(-1, -1, {}), topics=again)
    assert decide(replace(lost, resume_from="output")).recreated == ("t",)


@pytest.mark.parametrize(
    "facts",
    [TopicFacts("id-t", {0: 2, 1: 0}, {0: 50, 1: 80}), TopicFacts("", {0: 2}, {0: 90})],
    ids=["lost its end", "fewer partitions"],
)
def test_a_topic_that_lost_what_is_archived_is_another_generation(facts: TopicFacts) -> None:
    """From wherever the user goes on: of the old records the archive has the only copy."""
    lost = replace(STOPPED, topics={"t": facts})
    group = {"t": {0: 20}}
    for resume_from in ("earliest", "output", "group"):
        plan = decide(replace(lost, resume_from=resume_from, group=group))
        assert (plan.positions, plan.recreated) == ({"t": dict(facts.earliest)}, ("t",))
        assert len(plan.notes) == 1 and "created again" in plan.notes[0]
    older = QueryLog(3, 3, {3: {"t": {0: 10}}})
    assert decide(replace(lost, resume_from="checkpoint", log=older)).recreated == ("t",)


def test_resume_from_what_is_not_there() -> None:
    assert "/out has no offsets" in refusal(replace(EMPTY, resume_from="output"))
    assert "/out.checkpoint has no offsets" in refusal(replace(EMPTY, resume_from="checkpoint"))
    found = replace(STOPPED, resume_from="earliest", topics=None)
    assert "give --resume-from output" in refusal(found)


def test_a_resume_that_was_cut_off_is_finished() -> None:
    begun = replace(COMMIT, query=2, batch_id=NO_BATCH)
    assert decide(replace(STOPPED, commit=begun)) == Plan("finish resume", AT)
