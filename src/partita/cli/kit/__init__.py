"""What every verb shares: options, tables, progress, secrets, JSON, and where the target is."""
