"""`dlq`: records that can be used to one topic, the others to a dead letter topic, in one
transaction; `dlq retry` sends those round again.

options  the options of both
checks   whether a record can be used
headers  what a dead letter says of itself
records  what a task does with its records
job      the run
"""
