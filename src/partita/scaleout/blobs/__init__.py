"""The blob store on PostgreSQL and an object store.

postgres_store   the BlobStore of one account
contents         what the stores of one front end share: connections, clock, object store, pins
collector        reclaims space, in one front end at a time
claims           why no upload of any front end loses its object: claims in the database
downloads        the rows and bytes of a download
changes, reads   statements: a transaction, and the committed state
objects          long content in a folder or an object store
locks, texts     pure: numbers of advisory locks; names that PostgreSQL can store
"""
