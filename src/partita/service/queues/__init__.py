"""The queue service: decode, perform, answer."""
