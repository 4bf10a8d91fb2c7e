"""PySpark jobs that make a data pipeline of Kafka topics.

They know Kafka and Spark, not kbroker: they run unchanged against Apache Kafka. `python -m
spark_jobs` lists them.
"""
