"""A whole cluster in one thread on simulated time: one seed determines the nodes, their clients and
the faults.
"""
