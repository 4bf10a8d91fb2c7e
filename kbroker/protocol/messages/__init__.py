"""Kafka's message and record schemas, one module per API family, request and response together.

Import the module of the family: this package imports none; `apis.request_class` finds the class for
an API key.
"""
