"""`dedupe`: the first record of each id, once.

options  its options
ids      the id of a record
rule     what is remembered, and what is written
job      the run
"""
