"""From the rows of an existing table to entity classes that read and write them. Pure."""
