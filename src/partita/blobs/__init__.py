"""Containers and blobs: rules, store and content files of one account. No HTTP.

rules       names, conditions, leases, tags, blocks            pure
store       the contract, rows in SQLite, content in files, the collector
engine      what each operation does on a store

An upload: engine.block_blobs → preconditions → store.change → rows and files → commit.
"""
