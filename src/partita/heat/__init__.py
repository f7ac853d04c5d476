"""Heat: the load of tables by ranges of keys and minutes: sampled, kept, read, drawn.

meter        samples of requests, on the request path
axes         samples → buckets of keys; minutes: by table; packing: as bytes. Pure
kept         the contract of a store, sqlite_heat: heat.sqlite or memory
recorder     closes minutes in the background, and reads; answers: as JSON
shapes       what the load of a table looks like, and advice. Pure
"""
