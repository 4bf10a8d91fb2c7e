"""`kbroker groups`."""
