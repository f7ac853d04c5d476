"""Tables for the pages: values with their types, plans and advice, groups of changes."""
