"""The format `kbroker`: topics as a data source of Spark in Python, without the Kafka connector.

options       of reads, by the names of Spark's Kafka source
planning      where reads begin and end, how much a batch may have, what was lost
topics        the topics as a cluster has them
records       fetched records as Arrow
readers       the batch and the stream reader
sink_options  of writes
staging       rows that tasks leave for the commit
writers       the batch and the stream writer, over the exactly-once sink
source        the data source itself, and its registration
"""
