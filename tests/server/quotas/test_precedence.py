"""Whose quota counts, by Kafka's own answers (tests/data/decisions/quotas)."""

from __future__ import annotations

from kbroker.metadata.client_quotas import CLIENT_ID, USER
from kbroker.metadata.image import QuotaEntity
from kbroker.server.quotas.precedence import SharedBy, applied_quota
from tests.controller.decisions import cases

TABLES = 150


def entity(user: str | None, client_id: str | None) -> QuotaEntity:
    """Of a line of the file: None is not part of it, "" the default."""
    parts = [(CLIENT_ID, client_id), (USER, user)]
    return tuple((kind, name or None) for kind, name in parts if name is not None)


def test_every_client_has_the_quota_that_kafka_gives_it() -> None:
    tables = 0
    for number, case in cases("quotas"):
        if case["kind"] != "whose":
            continue
        tables += 1
        bounds = {
            entity(user, client_id): float(bound) for user, client_id, bound in case["quotas"]
        }
        for user, client_id, bound, tags in case["asked"]:
            found = applied_quota(bounds, user, client_id)
            if bound is None:
                assert found is None, number
                continue
            assert found is not None, number
            assert found.bound == bound, number
            assert found.shared_by == SharedBy(tags["user"], tags["client-id"]), number
    assert tables == TABLES


def test_a_default_quota_is_held_by_each_client_alone() -> None:
    bounds = {entity(None, ""): 5.0}
    first, second = (applied_quota(bounds, "u", client_id) for client_id in ("a", "b"))
    assert first is not None and second is not None
    assert first.shared_by != second.shared_by
