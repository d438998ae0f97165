"""The order of candidates for a query."""
