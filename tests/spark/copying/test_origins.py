"""Where topics come from, and that no record goes round."""

from __future__ import annotations

import pytest

from spark_jobs.copying.origins import (
    Origin,
    Registration,
    origins_of,
    refuse_circle,
    register,
    registrations,
    unregister,
)
from spark_jobs.errors import StartRefused
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster

A, B, C = (Origin(name, "orders") for name in "ABC")


def test_a_chain_of_mirrors() -> None:
    in_b = [Registration("m", "orders", origins_of(A, []))]
    in_c = [Registration("n", "orders", origins_of(B, in_b))]
    assert origins_of(C, in_c) == (C, B, A)
    refuse_circle(C, origins_of(B, in_b))
    for target, origins in ((A, origins_of(C, in_c)), (B, origins_of(C, in_c))):
        with pytest.raises(StartRefused, match="would go round for ever"):
            refuse_circle(target, origins)


def test_a_topic_into_itself() -> None:
    with pytest.raises(StartRefused, match="mirrored into itself"):
        refuse_circle(A, (A,))


def test_other_topics_and_prefixes_are_no_circle() -> None:
    in_b = [
        Registration("m", "a.orders", (A,)),
        Registration("m", "other", (Origin("A", "b.orders"),)),
    ]
    refuse_circle(Origin("A", "b.orders"), origins_of(B, in_b))
    assert origins_of(Origin("B", "a.orders"), in_b) == (Origin("B", "a.orders"), A)


def test_registrations_are_kept_in_the_cluster() -> None:
    cluster = ScriptedCluster()
    client = cluster.client()
    assert registrations(client) == []
    one, two = Registration("m", "orders", (A, B)), Registration("m", "prices", (A,))
    register(client, one, "spark-m")
    register(client, two, "spark-m")
    register(client, Registration("m", "prices", (B,)), "spark-m")
    assert registrations(client) == [one, Registration("m", "prices", (B,))]
    unregister(client, "prices", "spark-m")
    assert registrations(client) == [one]


def test_other_values_are_no_registrations() -> None:
    for value in (b"", b"[]", b'{"origins":[]}', b'{"origins":[["a","b"]]}'):
        assert Registration.decode(value) is None
