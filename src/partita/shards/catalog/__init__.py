"""The global and local catalogs, and the changes that keep them equal."""
