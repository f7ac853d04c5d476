"""Queues of messages: at least once, hidden while they are worked on. No HTTP here."""
