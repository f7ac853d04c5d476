"""The wire: the Azure Table protocol over HTTP, or without a socket in one process."""
