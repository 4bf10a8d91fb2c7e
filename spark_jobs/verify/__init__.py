"""Whether a topic is whole, and whether a copy of it (a topic, an archive) has the same records.

job      options, the Spark job, the report and the exit code
reading  a partition of a topic, batch by batch: records, markers, holes
archive  an archive as a side: how far it is, and which of its files count
frames   the same of a frame with the columns of Spark's Kafka source
facts    what is known of a partition, and its hashes
compare  two sides -> findings
"""
