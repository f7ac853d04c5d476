"""Queues of messages: delivered at least once, hidden while they are processed. No HTTP here."""
