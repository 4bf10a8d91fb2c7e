"""`kbroker configs`."""
