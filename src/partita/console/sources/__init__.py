"""What the console shows besides accounts: metrics, reliable states, shard maps, fleets, types.

operations   metrics, slow requests and heat of a server
states       a reliable state in a folder, or the partitions on NATS
catalogs     the catalog of shard maps
fleets       a fleet of PostgreSQL shards
types        entity types of the application
"""
