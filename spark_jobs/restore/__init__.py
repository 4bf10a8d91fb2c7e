"""`restore` and `replay`: an archive, or a range of a topic, to a topic, each record once.

options   the options of both jobs
moments   points in time
slices    the ranges of offsets that are written together, and when each is due
files     which files of an archive hold a topic
sources   an archive and a topic as sources
plan      the decision of a start
kept      writing records at the offsets that they have in the source
job       the run
"""
