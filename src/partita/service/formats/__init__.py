"""Formats of the three services: addresses, errors, XML, multipart; pure."""
