"""Design advice: explain, lints, access patterns, prices, and the schema lock."""
