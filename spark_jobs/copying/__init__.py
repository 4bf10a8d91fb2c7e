"""What the jobs that copy records from topic to topic share.

targets   the topics that are written: created, grown, their settings copied
origins   where topics come from, so that a copy is not copied back
start     the decision of a start of a streaming copy
opening   carrying a start out
stream    the query of a streaming copy
"""
