"""What an entity class declares: type, links, indexes, layout of its rows."""
