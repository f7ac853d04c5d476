"""Bulk work on the tables of any account: Azure, Azurite, Partita or a folder.

connecting   WHERE → an open `TableClient`
wire         the table protocol as calls: pages, entities, groups, tables
http_client  HTTP/1.1 with kept connections; a folder answers in process instead
entities     an entity as typed values, and its printed form; pure
canonical    the canonical form of an entity, and digests of many; pure
identity     tokens of Microsoft Entra ID, by azure-identity
formats/     JSON lines, CSV, Parquet, AzCopy files; pure but for Parquet
work/        import, export, copy, count, delete-where, verify
"""
