"""What the console shows besides accounts: metrics, reliable states, shard maps, types.

operations   metrics, slow requests and heat of a server
states       a reliable state in a folder, or the partitions on NATS
catalogs     the catalog of shard maps
types        entity types of the application
"""
