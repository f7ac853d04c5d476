"""The only I/O of the package: official clients, or an engine in this process."""
