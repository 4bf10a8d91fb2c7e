"""kafka-transactions.sh."""

from __future__ import annotations

from typing import Final

from tests.clients.adapters import wait_until
from tests.clients.compared.acts import (
    PROPERTIES,
    WAIT_S,
    client_properties,
    find_coordinator,
    leave,
)
from tests.clients.compared.partitions import create, delete
from tests.clients.compared.row import Act, Row, Session, World

MASKS: Final = (
    (r"[ \t]+", " "),
    (r"^(tx-(?:one|two|new) 1 )\d+ ", r"\1<producer> "),
    (r"^(1 tx-\S+ )\d+ ", r"\1<producer> "),
    (r"^\d+( \d+ )-?\d+( -?\d+ <ms>)", r"<producer>\1<epoch>\2"),
    (r"^(tx-t \d+ )\d+( \d+ )-?\d+", r"\1<producer>\2<epoch>"),
    (r"(<ms> )\d+ ", r"\1<duration> "),
    (r"producerId=\d+", "producerId=<producer>"),
    (r" +$", ""),
)
"""Ids of producers are counted through all sessions."""


def transactions(name: str, arguments: str, again: str = "") -> Row:
    """A run of TransactionsCommand."""
    return Row(name, "TransactionsCommand", arguments, masks=MASKS, again=again)


def begin(transactional_id: str, topic: str, count: int) -> Act:
    """A transaction with records in partition 0, which stays open: librdkafka. `leave` aborts it."""

    def run(world: World) -> None:
        from confluent_kafka import KafkaException, Producer

        find_coordinator(world, transactional_id, 1)
        producer = Producer(
            {
                "bootstrap.servers": world.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=0)
        wait_until(lambda: producer.flush(1) == 0, WAIT_S, "records of a transaction")

        def abort() -> None:
            try:
                producer.abort_transaction(WAIT_S)
            except KafkaException:
                producer.purge()  # a row has fenced it

        world.on_end.append(abort)

    return Act(run)


TRANSACTIONS: Final = Session(
    "transactions",
    (
        create("tx-t", 2),
        begin("tx-one", "tx-t", 3),
        transactions("list", "list"),
        transactions("list a pattern", "list --transactional-id-pattern 'tx-.*'"),
        transactions("list another pattern", "list --transactional-id-pattern 'ty-.*'"),
        transactions("list a wrong pattern", "list --transactional-id-pattern '('"),
        transactions("list long ones", "list --duration-filter 3600000"),
        transactions("describe", "describe --transactional-id tx-one"),
        transactions("describe an unknown one", "describe --transactional-id tx-none"),
        transactions("describe producers", "describe-producers --topic tx-t --partition 0"),
        transactions("describe producers of a broker", "describe-producers --topic tx-t --partition 0 --broker-id 1"),
        transactions("describe producers where there are none", "describe-producers --topic tx-t --partition 1"),
        client_properties(1500),
        transactions("describe producers of an unknown partition", f"{PROPERTIES} describe-producers --topic tx-t --partition 7 --broker-id 1"),
        transactions("find hanging ones", "find-hanging --topic tx-t"),
        transactions("find hanging ones on a broker", "find-hanging --broker-id 1 --max-transaction-timeout 0"),
        transactions("find hanging ones of a partition", "find-hanging --topic tx-t --partition 1"),
        transactions("find hanging ones nowhere", "find-hanging"),
        transactions("abort without a start", "abort --topic tx-t --partition 0"),
        transactions("abort another start", "abort --topic tx-t --partition 0 --start-offset 2"),
        transactions("abort with an old epoch", "abort --topic tx-t --partition 0 --producer-id 999999 --producer-epoch 0 --coordinator-epoch 0"),
        transactions("abort", "abort --topic tx-t --partition 0 --start-offset 0"),
        transactions("describe producers after the abort", "describe-producers --topic tx-t --partition 0"),
        leave(),
        transactions("describe an aborted one", "describe --transactional-id tx-one", again="CompleteAbort"),
        begin("tx-two", "tx-t", 1),
        transactions("terminate", "forceTerminateTransaction --transactionalId tx-two"),
        transactions("describe what is terminated", "describe --transactional-id tx-two"),
        leave(),
        transactions("terminate an unknown one", "forceTerminateTransaction --transactionalId tx-new"),
        Row("list what there is", "TransactionsCommand", "list", sort=True, masks=MASKS),
        transactions("no verb", ""),
        delete("tx-t"),
    ),
)  # fmt: skip

SESSIONS: Final = (TRANSACTIONS,)
