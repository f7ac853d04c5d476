"""Fields of entity classes: annotations, markers, and how values are stored as properties."""
