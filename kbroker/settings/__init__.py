"""Kafka's configurations: one table, typed objects, properties files."""
