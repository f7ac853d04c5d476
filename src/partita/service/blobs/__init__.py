"""The blob service: decode, perform, answer."""
