"""`kbroker topics`."""
