"""Whose quota a client is held to (ClientQuotaManager's DefaultQuotaCallback of Kafka 4.3.1).

The first of these that has a quota of the key counts:

    user and client id · user and default client id · user · default user and client id
    default user and default client id · default user · client id · default client id

A quota is shared by all clients with the same `SharedBy`: a user's quota by all client ids of that
user; a default one is held by each user, or client id, alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.metadata.client_quotas import CLIENT_ID, USER
from kbroker.metadata.image import QuotaEntity


class SharedBy(NamedTuple):
    """The clients that are counted together: those of this user and client id; "" is any."""

    user: str
    client_id: str


class AppliedQuota(NamedTuple):
    """bound: per second."""

    shared_by: SharedBy
    bound: float


def _both(user: str | None, client_id: str | None) -> QuotaEntity:
    return ((CLIENT_ID, client_id), (USER, user))


def applied_quota(
    bounds: Mapping[QuotaEntity, float], user: str, client_id: str
) -> AppliedQuota | None:
    """The quota that holds for a client; None if none does. bounds: of one key, by entity."""
    pair, user_alone, client_alone = (
        SharedBy(user, client_id),
        SharedBy(user, ""),
        SharedBy("", client_id),
    )
    for entity, shared_by in (
        (_both(user, client_id), pair),
        (_both(user, None), pair),
        (((USER, user),), user_alone),
        (_both(None, client_id), pair),
        (_both(None, None), pair),
        (((USER, None),), user_alone),
        (((CLIENT_ID, client_id),), client_alone),
        (((CLIENT_ID, None),), client_alone),
    ):
        bound = bounds.get(entity)
        if bound is not None:
            return AppliedQuota(shared_by, bound)
    return None
