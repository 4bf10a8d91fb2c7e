"""`kbroker profile`: clusters under names."""
