"""Queues of messages: delivered at least once, hidden while they are processed. No HTTP here.

A claim: engine → names and limits → store: mark the next visible messages hidden → commit.
"""
