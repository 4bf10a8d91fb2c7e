"""The voters of the quorum: their keys, endpoints and supported kraft.versions. KIP-853.

A voter is identified by its node id and the directory id of its metadata log, so a node with an
emptied disk is a different voter. In a static quorum (kraft.version 0) directory ids are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from kbroker.model import ZERO_UUID, Uuid, uuid_to_string

SUPPORTED_KRAFT_VERSIONS: Final = (0, 1)
"""Lowest and highest kraft.version of this release."""

MAX_ENDPOINTS: Final = 1000
"""The maximum number of endpoints of one node. More are rejected, since they would be in every
voter set.
"""

MAX_NAME_CHARACTERS: Final = 255
"""The maximum length of a listener's name and of a host name."""


E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class ReplicaKey(NamedTuple):
    """A replica of the metadata log. directory_id: ZERO_UUID if unknown."""

    id: int
    directory_id: Uuid = ZERO_UUID

    def names(self, replica: ReplicaKey) -> bool:
        """Whether this key identifies that replica: an unknown directory id matches any."""
        return self.id == replica.id and self.directory_id in (ZERO_UUID, replica.directory_id)

    def __str__(self) -> str:
        if self.directory_id == ZERO_UUID:
            return str(self.id)
        return f"{self.id}:{uuid_to_string(self.directory_id)}"


class EndpointFields(Protocol):
    """The fields of an endpoint, in any message class."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class VoterEndpoint(msgspec.Struct, frozen=True):
    """A listener of a voter."""

    name: str
    host: str
    port: int

    @classmethod
    def all_of(cls, endpoints: Iterable[EndpointFields]) -> tuple[VoterEndpoint, ...]:
        """The endpoints of a message; at most one more than `MAX_ENDPOINTS`."""
        some = islice(endpoints, MAX_ENDPOINTS + 1)
        return tuple(cls(each.name, each.host, each.port) for each in some)


def are_usable(endpoints: Sequence[VoterEndpoint]) -> bool:
    """Whether there are not too many endpoints, and each has a valid name, host and port."""
    return len(endpoints) <= MAX_ENDPOINTS and all(
        len(text) <= MAX_NAME_CHARACTERS and text.isprintable()
        for each in endpoints
        for text in (each.name, each.host)
    )


class EndpointClass(Protocol[E_co]):
    """A message class for endpoints."""

    def __call__(self, *, name: str, host: str, port: int) -> E_co: ...


def endpoint_fields(
    endpoint_class: EndpointClass[E], endpoints: Iterable[VoterEndpoint]
) -> list[E]:
    """Convert endpoints to those of a message class."""
    return [endpoint_class(name=each.name, host=each.host, port=each.port) for each in endpoints]


class Voter(msgspec.Struct, frozen=True):
    """A member of the quorum. directory_id: ZERO_UUID in a static quorum. supported_versions: the
    lowest and highest kraft.version that the node supports.
    """

    id: int
    directory_id: Uuid
    endpoints: tuple[VoterEndpoint, ...] = ()
    supported_versions: tuple[int, int] = SUPPORTED_KRAFT_VERSIONS

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory_id)

    def matches(self, key: ReplicaKey) -> bool:
        """Whether key identifies this voter. An unknown directory id of the voter matches any."""
        return self.id == key.id and self.directory_id in (ZERO_UUID, key.directory_id)

    def is_same_as(self, other: Voter) -> bool:
        """Whether both have the same key, versions and endpoints; these in any order, since Kafka
        keeps them in a map.
        """
        return (
            self.id == other.id
            and self.directory_id == other.directory_id
            and self.supported_versions == other.supported_versions
            and (self.endpoints == other.endpoints or set(self.endpoints) == set(other.endpoints))
        )

    def endpoint(self, listener_name: str) -> VoterEndpoint | None:
        """The endpoint of that listener; None if the voter has none."""
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint
        return None


class VoterSet:
    """Voters by id, in ascending order of ids. Immutable; a change returns another set."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters = {voter.id: voter for voter in sorted(voters, key=lambda voter: voter.id)}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"VoterSet({list(self)})"

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._voters)

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        return tuple(voter.key for voter in self)

    @property
    def majority(self) -> int:
        """The number of voters that is a majority."""
        return len(self._voters) // 2 + 1

    def get(self, voter_id: int) -> Voter | None:
        """The voter with that id, with any directory id."""
        return self._voters.get(voter_id)

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether key is in the set; a voter without a directory id matches by id alone."""
        voter = self._voters.get(key.id)
        return voter is not None and voter.directory_id in (ZERO_UUID, key.directory_id)

    def is_only_voter(self, key: ReplicaKey) -> bool:
        """Whether key is the only voter."""
        return len(self._voters) == 1 and self.is_voter(key)

    def with_voter(self, voter: Voter) -> VoterSet | None:
        """The set with one more voter; None if the set already has its id."""
        if voter.id in self._voters:
            return None
        return VoterSet([*self, voter])

    def without_voter(self, key: ReplicaKey) -> VoterSet | None:
        """The set without that voter; None if id and directory id are not exactly those of a voter,
        or if the set would be empty.
        """
        voter = self._voters.get(key.id)
        if voter is None or voter.key != key or len(self) == 1:
            return None
        return VoterSet(each for each in self if each is not voter)

    def with_updated_voter(self, voter: Voter) -> VoterSet | None:
        """The set with voter in place of the voter it matches; None if it matches none."""
        if not self.is_voter(voter.key):
            return None
        return VoterSet(voter if each.id == voter.id else each for each in self)

    def supports(self, kraft_version: int) -> bool:
        """Whether each voter supports that kraft.version."""
        return all(
            voter.supported_versions[0] <= kraft_version <= voter.supported_versions[1]
            for voter in self
        )
