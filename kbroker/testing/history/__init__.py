"""The operations that clients of a cluster performed and observed, and checks of them: was an
acknowledged record lost?
"""
