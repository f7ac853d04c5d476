"""The table engine: entities, groups, filters, pages, on a store. No HTTP here.

A group: engine.run → operations.EntityGroup.check → store.partition → read, apply, write → commit.
A query: engine.query → filters.parse → plan → store.scan → the compiled filter → a page.
"""
