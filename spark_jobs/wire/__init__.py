"""A Kafka cluster over blocking sockets, for drivers, tasks and listeners of Spark: none of them
runs an event loop, and a notebook's own may not be blocked.

    client      brokers, leaders, coordinators, retries
    connection  one connection
    offsets     the first and last offsets of partitions
    fetch       batches of a partition
    groups      committed offsets of a consumer group, and its members
"""
