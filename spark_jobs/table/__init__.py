"""`table`: a compacted topic, or one of Debezium, to a table with the current row of each key."""
