"""The table engine: entities, groups, filters, pages, on a store. No HTTP here."""
