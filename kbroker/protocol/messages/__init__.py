"""Kafka's message and record schemas, one module per API family, request and response together.

Import the family you need: this package imports none, and `apis.request_class` finds one by key.
"""
