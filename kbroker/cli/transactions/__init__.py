"""`kbroker transactions`."""
