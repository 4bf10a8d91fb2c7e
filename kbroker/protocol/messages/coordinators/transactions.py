"""Idempotent producers and transactions (KIP-98, KIP-890), and tools for transactions (KIP-664)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
)


class InitProducerIdRequest(
    Request,
    api_key=22,
    versions="0-6",
    flexible="2+",
    listeners="broker",
    latest_version_unstable=True,
):
    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+", default=False)
    keep_prepared_txn: bool = boolean("6+", default=False)


class InitProducerIdResponse(Response, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)


class AddPartitionsToTxnRequest(
    Request, api_key=24, versions="0-5", flexible="3+", listeners="broker"
):
    class AddPartitionsToTxnTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str = string("4+")
        producer_id: int = int64("4+")
        producer_epoch: int = int16("4+")
        verify_only: bool = boolean("4+", default=False)
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array(
            "AddPartitionsToTxnTopic", "4+"
        )

    transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = array(
        "AddPartitionsToTxnTransaction", "4+"
    )
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array(
        "AddPartitionsToTxnTopic", "0-3"
    )


class AddPartitionsToTxnResponse(Response, api_key=24, versions="0-5", flexible="3+"):
    class AddPartitionsToTxnTopicResult(Struct):
        name: str = string("0+")
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = (
            array("AddPartitionsToTxnPartitionResult", "0+")
        )

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int = int32("0+")
        partition_error_code: int = int16("0+")

    class AddPartitionsToTxnResult(Struct):
        transactional_id: str = string("4+")
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = array(
            "AddPartitionsToTxnTopicResult", "4+"
        )

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = array(
        "AddPartitionsToTxnResult", "4+"
    )
    results_by_topic_v3_and_below: list[
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    ] = array("AddPartitionsToTxnTopicResult", "0-3")


class AddOffsetsToTxnRequest(
    Request, api_key=25, versions="0-4", flexible="3+", listeners="broker"
):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible="3+", listeners="broker"):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class WriteTxnMarkersRequest(
    Request, api_key=27, versions="1-2", flexible="1+", listeners="broker"
):
    class WritableTxnMarkerTopic(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("int32", "0+")

    class WritableTxnMarker(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        transaction_result: bool = boolean("0+")
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = array(
            "WritableTxnMarkerTopic", "0+"
        )
        coordinator_epoch: int = int32("0+")
        transaction_version: int = int8("2+", default=0, ignorable=True)

    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = array("WritableTxnMarker", "0+")


class WriteTxnMarkersResponse(Response, api_key=27, versions="1-2", flexible="1+"):
    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class WritableTxnMarkerTopicResult(Struct):
        name: str = string("0+")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = array(
            "WritableTxnMarkerPartitionResult", "0+"
        )

    class WritableTxnMarkerResult(Struct):
        producer_id: int = int64("0+")
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = array(
            "WritableTxnMarkerTopicResult", "0+"
        )

    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = array(
        "WritableTxnMarkerResult", "0+"
    )


class TxnOffsetCommitRequest(
    Request, api_key=28, versions="0-5", flexible="3+", listeners="broker"
):
    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
        committed_metadata: str | None = string("0+", nullable="0+")

    class TxnOffsetCommitRequestTopic(Struct):
        name: str = string("0+")
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = array(
            "TxnOffsetCommitRequestPartition", "0+"
        )

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = array(
        "TxnOffsetCommitRequestTopic", "0+"
    )


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-5", flexible="3+"):
    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class TxnOffsetCommitResponseTopic(Struct):
        name: str = string("0+")
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = array(
            "TxnOffsetCommitResponsePartition", "0+"
        )

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = array(
        "TxnOffsetCommitResponseTopic", "0+"
    )


class DescribeTransactionsRequest(
    Request, api_key=65, versions="0", flexible="0+", listeners="broker"
):
    transactional_ids: list[str] = array("string", "0+")


class DescribeTransactionsResponse(Response, api_key=65, versions="0", flexible="0+"):
    class TopicData(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    class TransactionState(Struct):
        error_code: int = int16("0+")
        transactional_id: str = string("0+")
        transaction_state: str = string("0+")
        transaction_timeout_ms: int = int32("0+")
        transaction_start_time_ms: int = int64("0+")
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        topics: list[DescribeTransactionsResponse.TopicData] = array("TopicData", "0+")

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribeTransactionsResponse.TransactionState] = array(
        "TransactionState", "0+"
    )


class ListTransactionsRequest(
    Request, api_key=66, versions="0-2", flexible="0+", listeners="broker"
):
    state_filters: list[str] = array("string", "0+")
    producer_id_filters: list[int] = array("int64", "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    class TransactionState(Struct):
        transactional_id: str = string("0+")
        producer_id: int = int64("0+")
        transaction_state: str = string("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array("string", "0+")
    transaction_states: list[ListTransactionsResponse.TransactionState] = array(
        "TransactionState", "0+"
    )


class DescribeProducersRequest(
    Request, api_key=61, versions="0", flexible="0+", listeners="broker"
):
    class TopicRequest(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("int32", "0+")

    topics: list[DescribeProducersRequest.TopicRequest] = array("TopicRequest", "0+")


class DescribeProducersResponse(Response, api_key=61, versions="0", flexible="0+"):
    class ProducerState(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int32("0+")
        last_sequence: int = int32("0+", default=-1)
        last_timestamp: int = int64("0+", default=-1)
        coordinator_epoch: int = int32("0+")
        current_txn_start_offset: int = int64("0+", default=-1)

    class PartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        active_producers: list[DescribeProducersResponse.ProducerState] = array(
            "ProducerState", "0+"
        )

    class TopicResponse(Struct):
        name: str = string("0+")
        partitions: list[DescribeProducersResponse.PartitionResponse] = array(
            "PartitionResponse", "0+"
        )

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeProducersResponse.TopicResponse] = array("TopicResponse", "0+")
