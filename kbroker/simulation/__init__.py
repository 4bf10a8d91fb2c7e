"""A whole cluster in one thread on simulated time: the nodes, their clients, and what goes wrong
follow from one seed.
"""
