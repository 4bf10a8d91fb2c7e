"""`identity.json`: what a checkpoint was made for, kept in its folder and renewed at each batch.

Topic ids, partition counts and offsets let the next start tell a topic that was truncated or
created again from one that only grew. Comparing is in `start`.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import Final

from .checkpoint import Offsets
from .cluster import TopicFacts, Topics
from .errors import JobError
from .storage import Folder

FILE_NAME: Final = "identity.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """A checkpoint's identity.

    checkpoint_id: random, also in every commit of the output. query: number of the query whose
    checkpoint counts (the folder `query-N`); a higher one begins after --resume-from. starting:
    the offsets it began with, empty for the job's --startingOffsets. topics: as they were at
    batch_id. targets: ids of the topics that a copy writes, by name, empty before Kafka 2.8; while
    batch_id is -1 those of an earlier query.
    """

    checkpoint_id: str
    job: str
    output: str
    query: int = 1
    starting: Offsets = field(default_factory=dict)
    batch_id: int = -1
    topics: Topics = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)

    @property
    def query_folder(self) -> str:
        """Name of the folder with Spark's checkpoint."""
        return f"query-{self.query}"

    def at_batch(self, batch_id: int, topics: Topics) -> Identity:
        """The identity after a batch; topics that are not known now stay as they were."""
        return replace(self, batch_id=batch_id, topics={**self.topics, **topics})

    def to_json(self) -> bytes:
        """The identity as a JSON document, for people to read too."""
        values: dict[str, object] = {
            "format": FORMAT,
            "checkpoint_id": self.checkpoint_id,
            "job": self.job,
            "output": self.output,
            "query": self.query,
            "starting": self.starting,
            "batch_id": self.batch_id,
            "topics": {
                name: {
                    "topic_id": facts.topic_id,
                    "partitions": len(facts.latest),
                    "earliest": facts.earliest,
                    "latest": facts.latest,
                }
                for name, facts in sorted(self.topics.items())
            },
        }
        if self.targets:
            values["targets"] = self.targets
        return json.dumps(values, indent=1).encode()


def query_numbers(checkpoint: Folder) -> list[int]:
    """Of the queries that a checkpoint's folder has or had, ascending."""
    numbers = (
        name.removeprefix("query-") for name in checkpoint.names() if name.startswith("query-")
    )
    return sorted(int(number) for number in numbers if number.isdecimal())


def new_identity(job: str, output: str) -> Identity:
    """An identity for a checkpoint that is made now."""
    return Identity(uuid.uuid4().hex, job, output)


def read_identity(checkpoint: Folder) -> Identity | None:
    """The identity in a checkpoint's folder; None if it has none. Raises JobError if damaged."""
    content = checkpoint.read(FILE_NAME)
    if content is None:
        return None
    try:
        return parse_identity(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(
            f"{checkpoint}/{FILE_NAME} is damaged ({error!r}): bring it back from a copy"
        ) from error


def parse_identity(content: bytes) -> Identity:
    """An identity from its JSON. Raises ValueError, KeyError, TypeError or AttributeError."""
    values = json.loads(content)
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']} of a newer version")
    return Identity(
        checkpoint_id=str(values["checkpoint_id"]),
        job=str(values["job"]),
        output=str(values["output"]),
        query=int(values["query"]),
        starting={name: _by_partition(offsets) for name, offsets in values["starting"].items()},
        batch_id=int(values["batch_id"]),
        topics={
            name: TopicFacts(
                str(facts["topic_id"]),
                _by_partition(facts["earliest"]),
                _by_partition(facts["latest"]),
            )
            for name, facts in values["topics"].items()
        },
        targets={name: str(topic_id) for name, topic_id in values.get("targets", {}).items()},
    )


def write_identity(checkpoint: Folder, identity: Identity) -> None:
    """Replace the identity in a checkpoint's folder."""
    checkpoint.write(FILE_NAME, identity.to_json())


def _by_partition(offsets: dict[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}
