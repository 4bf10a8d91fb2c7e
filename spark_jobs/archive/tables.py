"""The tables of an archive with decoded values: one for each topic, whose schema is kept in the
output. In a batch it grows before the first file is written, so that all files of the batch have
the same columns; columns are added, and none is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..decoding.decoder import Decoder, FramedDecoder, GivenSchemas
from ..decoding.errors import SchemaProblem, Undecodable
from ..decoding.options import Decode, DecodeOptions
from ..decoding.registry import FRAME_BYTES, MAGIC, Texts
from ..decoding.spark_schema import json_schema
from ..decoding.types import Schema, merged
from ..errors import JobError, StartRefused
from ..storage import Folder
from .commits import STATE_FOLDER, Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = f"{STATE_FOLDER}/tables"
FORM: Final = f"{STATE_FOLDER}/decode.json"
"""What values of the archive are; it is not there where they are bytes."""

MAX_SCHEMAS: Final = 1000
"""Ids of one topic that are looked up for one batch, beside those of schemas that are known. There
are more only where values are no Avro and begin with a byte 0 by chance; those that the fewest
records have are dead letters then.
"""


@dataclass(frozen=True, slots=True)
class TopicTable:
    """A table in one batch. type: of its column `value`, None before the first value. decoder: of
    the topic's values, picklable.
    """

    type: Schema | None
    decoder: Decoder


def form_of(output: Folder) -> Decode:
    """What values of an archive are. Raises JobError if that cannot be read."""
    content = output.read(FORM)
    if content is None:
        return "none"
    try:
        form: Decode = json.loads(content)["decode"]
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{output}/{FORM} is damaged: bring it back from a copy") from error
    return form


def refuse_decoded(output: Folder, purpose: str) -> None:
    """Raises JobError if values of an archive are not the bytes that they were."""
    form = form_of(output)
    if form != "none":
        raise JobError(
            f"{output} was archived with --decode {form}: its values are data, not the bytes that "
            f"they were, and cannot be {purpose}"
        )


def check_form(output: Folder, commit: Commit | None, wanted: Decode) -> None:
    """Raises StartRefused if the archive has values of another form than is wanted."""
    if commit is None or not (commit.records or output.exists(FORM)):
        return
    form = form_of(output)
    if form != wanted:
        raise StartRefused(
            f"the values in {output} were archived with --decode {form}, and this is {wanted}: "
            "give --decode as it was, or another --output"
        )


class Tables:
    """The tables of one output, as the driver keeps them. schema: of JSON values by
    `options.schema`.
    """

    def __init__(self, output: Folder, options: DecodeOptions, schema: Schema | None) -> None:
        """Raises JobError if the registry cannot be asked."""
        self._output = output
        self._options = options
        self._schema = schema
        self._framed: FramedDecoder | None = None
        if options.decode == "confluent-avro":
            self._framed = options.framed()

    @property
    def looks_at_values(self) -> bool:
        """Whether `of_batch` reads the values of a batch."""
        return self._framed is not None

    def keep_form(self) -> None:
        """Note in the output what its values are."""
        if not self._output.exists(FORM):
            self._output.write(FORM, json.dumps({"decode": self._options.decode}).encode())

    def of_batch(self, frame: DataFrame, topics: Iterable[str]) -> dict[str, TopicTable]:
        """The tables behind a batch, kept in the output. topics: of the batch at least. Raises
        JobError where a schema of the options does not fit the table, or cannot be had.
        """
        if self._framed is None:
            return {topic: self._grown_by_options(topic) for topic in topics}
        found = schema_ids(frame)
        return {topic: self._of_framed(topic, found.get(topic, {})) for topic in topics}

    def _grown_by_options(self, topic: str) -> TopicTable:
        decoder = self._options.typed(topic, self._schema)
        if decoder is None:
            raise AssertionError("values that stay bytes have no tables")
        known = self._known(topic)
        try:
            table = decoder.type if known is None else merged(known, decoder.type)
        except SchemaProblem as error:
            raise JobError(
                f"the schema does not fit the table of topic {topic}: {error}; columns can be "
                "added, and none can change: give the old type, or another --output"
            ) from error
        self._keep(topic, known, table)
        return TopicTable(table, decoder)

    def _of_framed(self, topic: str, numbers: Mapping[int, int]) -> TopicTable:
        """numbers: records by the id of their schema."""
        framed, known = self._framed, self._known(topic)
        if framed is None:
            raise AssertionError("values without ids")
        table = known
        texts: dict[int, Texts] = {}
        refused: dict[int, str] = {}
        looked_up = [number for number in numbers if framed.knows(number)]
        looked_up += most_used({n: numbers[n] for n in numbers if not framed.knows(n)})
        for number in sorted(looked_up):  # the order in which they were registered
            try:
                decoder = framed.decoder(number)
                table = decoder.type if table is None else merged(table, decoder.type)
                texts[number] = decoder.texts
            except SchemaProblem as error:
                refused[number] = f"schema {number} does not fit the table: {error}"
            except Undecodable as error:
                refused[number] = str(error)
        if table is not None:
            self._keep(topic, known, table)
        return TopicTable(table, GivenSchemas(texts, refused))

    def _known(self, topic: str) -> Schema | None:
        content = self._output.read(f"{TABLES}/{topic}.json")
        if content is None:
            return None
        try:
            return json.loads(content)["type"]
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{self._output}/{TABLES}/{topic}.json is damaged: bring it back from a copy"
            ) from error

    def _keep(self, topic: str, known: Schema | None, table: Schema) -> None:
        if table != known:
            content = json.dumps({"topic": topic, "type": table}, indent=1).encode()
            self._output.write(f"{TABLES}/{topic}.json", content)


def tables_of(output: Folder, options: DecodeOptions, spark: SparkSession) -> Tables | None:
    """Of decoded values; None where they stay bytes. Raises JobError for a wrong schema, and if the
    registry cannot be asked.
    """
    if options.decode == "none":
        return None
    return Tables(output, options, json_schema(spark, options))


def most_used(numbers: Mapping[int, int]) -> list[int]:
    """The ids of the most records, MAX_SCHEMAS at most; of equally many, the smallest.
    numbers: records by id.
    """
    return sorted(numbers, key=lambda number: (-numbers[number], number))[:MAX_SCHEMAS]


def schema_ids(frame: DataFrame) -> dict[str, dict[int, int]]:
    """By topic, the ids that framed values of a batch begin with, and how many values each has."""
    from pyspark.sql import functions as F

    framed = frame.where(F.length("value") >= FRAME_BYTES)
    beginning = F.substring("value", 1, FRAME_BYTES).alias("beginning")
    found: dict[str, dict[int, int]] = {}
    for row in framed.groupBy("topic", beginning).count().collect():
        content = bytes(row["beginning"])
        if content[0] == MAGIC:
            numbers = found.setdefault(row["topic"], {})
            numbers[int.from_bytes(content[1:], "big")] = row["count"]
    return found
