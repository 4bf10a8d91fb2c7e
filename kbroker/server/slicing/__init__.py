"""Requests with very many items: handled in slices of the loop."""
