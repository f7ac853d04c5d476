"""Tables, queues and blobs of any number of front ends in one PostgreSQL database.

    fleet         what one front end owns: connections, catalog, clock, stores
    tables        the TableStore: gathered reads and writes, scans, filters as SQL
    queues        the QueueStore: claims by SKIP LOCKED
    blobs         the BlobStore: records in the database, long content in an object store
    catalog       accounts, tables, ranges, slots of front ends, the fleet's clock
    schema        the SQL of all of it, and its installation
    copying       copies of whole accounts between folders and this database
    connections   one checked connection, pools, lanes

A write goes: engine -> tables.postgres_store -> a lane gathers it with others -> one call of a
function in the database, which locks, checks the fence of the key range, and writes.
"""
