"""How a Python value is stored as a property."""
