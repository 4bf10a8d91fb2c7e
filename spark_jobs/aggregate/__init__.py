"""`aggregate`: totals of a topic, by key or fields, in windows or running.

measures  the columns of groups and totals, out of their texts
options   its options
rule      what is remembered, and what is written
job       the run
"""
