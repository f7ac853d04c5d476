"""The table store on PostgreSQL."""
