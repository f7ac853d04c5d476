"""The command line: reads configuration, builds the objects, runs them."""
