"""`mirror`: topics to topics of another cluster, each record once, in its partition and in order.

options  its options
job      topics made ready, batches, the run
"""
