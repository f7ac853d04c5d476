"""The table service: decode, perform, answer."""
