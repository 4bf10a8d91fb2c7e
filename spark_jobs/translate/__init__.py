"""`translate`: the offsets of a consumer group in a copy of its topics, by the copy's offset map.

options  its options
moves    what becomes of each offset
job      both clusters looked at, the offsets committed
"""
