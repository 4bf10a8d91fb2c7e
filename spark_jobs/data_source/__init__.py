"""The format `kbroker`: topics as a data source of Spark in Python, without the Kafka connector.

options   its options, by the names of Spark's Kafka source
planning  where reads begin and end, how much a batch may have, what was lost
topics    the topics as a cluster has them
records   fetched records as Arrow
readers   the batch and the stream reader
source    the data source itself, and its registration
"""
