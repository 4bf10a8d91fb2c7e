"""What `dedupe` and `aggregate` share: they remember records of earlier batches.

options     their shared options
watermarks  which records are late
state       what a batch leaves for the next one, in the checkpoint's folder
batches     a batch: late records, the new state, what is written
job         topics made ready, the run, the report
"""
