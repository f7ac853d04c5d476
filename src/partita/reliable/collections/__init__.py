"""Transactions, and the dictionaries and queues that they change."""
