"""What clients of a cluster did and saw, and a verdict on it: was an acknowledged record lost?"""
