"""`groups-audit`: who committed which offsets when, how the lag went, and which transactions are
stuck, out of `__consumer_offsets` and `__transaction_state`.

options       its options
records       records of both topics, decoded
history       a partition of `__consumer_offsets`, replayed: commits and who made them
transactions  the transactions that should have ended
report        what is printed
job           both topics read, the ends of the log looked up
"""
