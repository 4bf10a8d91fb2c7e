"""Exactly-once writes from Spark to Kafka, without two-phase commit.

A transaction belongs to a transactional id, a producer id and its epoch, not to a connection, and
sequences are kept per producer id and partition. So the driver opens one transaction per
micro-batch, lends its producer id to all tasks, and ends it with one EndTxn request; a token in the
same transaction says which batch it was.

    sink            `kafka_sink` for `foreachBatch`: its options, and the Spark job
    frames          columns checked, rows arranged by target partition
    tasks           the functions that Spark runs per task
    driver          one batch: begin, write, commit, or abort and begin again
    transaction     requests to the transaction coordinator
    tokens          tokens and claims: what the compacted topic `__spark_batches` holds
    token_log       reading it
    source_offsets  where a batch ends in its source
    map_log         the offset map: what `__spark_offsets` holds
    runs            which target offset each source offset became
    claims          one task attempt per target partition and transaction
    grant           what the driver lends to the tasks
    writer          rows of a task -> batches -> Produce requests
    batches         sequences and sizes of batches
    produce         Produce requests
    rows            Arrow record batches -> rows
    topics          the topics that are written to, and the topic of tokens
"""
