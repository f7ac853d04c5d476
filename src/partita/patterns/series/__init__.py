"""Tables per period, and logs in append blobs."""
