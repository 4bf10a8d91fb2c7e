"""Metrics, health and readiness of a node over HTTP. Imported only where a port is configured."""
