"""Query plans: from conditions to requests. Pure."""
