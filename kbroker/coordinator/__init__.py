"""Group, transaction and share coordinators: state replayed from internal topics; writes go through
a port.
"""
