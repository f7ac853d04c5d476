"""Containers and blobs: rules, store and content files of one account. No HTTP."""
