"""Authentication and authorization of requests; pure."""
