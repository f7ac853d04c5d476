"""Balancing: which ranges of a fleet to split, move and merge, and why.

picture      what is known about ranges and shards in one moment. Pure
measuring    heat → the load of each range, where to split it, its hottest key. Pure
deciding     picture → actions and notices, with reasons. Pure
observing    reads the picture from the catalog and the shards
"""
