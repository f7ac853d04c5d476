"""Encrypted properties: keyrings, ciphers, and the formats of sealed values."""

from partita.patterns.encryption.sealing import rewrap, seal, unseal

__all__ = ["rewrap", "seal", "unseal"]
