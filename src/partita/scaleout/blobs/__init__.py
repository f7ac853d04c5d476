"""The blob store on PostgreSQL and an object store."""
