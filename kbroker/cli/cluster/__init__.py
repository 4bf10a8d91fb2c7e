"""`kbroker cluster`."""
