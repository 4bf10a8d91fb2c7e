"""Tables of Delta Lake and Apache Iceberg as outputs of jobs: by their path, with Spark's SQL and
without internals of a JVM. What a table says of itself is read without Spark.
"""
