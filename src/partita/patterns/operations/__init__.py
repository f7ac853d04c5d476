"""The verbs on entities: load, save, groups, bulk, queries, joins."""
