"""Design advice: explain, lints, access patterns, prices, the schema lock."""
