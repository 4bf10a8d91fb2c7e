"""Spark's offsets as those of consumer groups, and how far queries are behind.

group_offsets     `GroupOffsets`: commits what a query has read to a group, batch by batch
committer         one commit: what is committed, what is not, and how failures are reported
commit_plan       which offsets of a query a group gets
starting_offsets  where a new query begins to go on where a group is
options           of the job `lag`
job               what the job does
queries           where queries are: their checkpoints
measuring         where the topics end, and since when the first record that is not read waits
report            what the job prints
"""
