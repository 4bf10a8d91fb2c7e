"""Groups (later transactions too) as state replayed from internal topics; writes go through a
port.
"""
