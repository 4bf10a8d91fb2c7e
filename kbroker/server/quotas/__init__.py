"""Client quotas at work (KIP-13, KIP-219, KIP-599, KIP-612): who is held to what, and for how long.

Pure: time is an argument, throttle times are results. `throttling` charges requests and mutes
connections.
"""
