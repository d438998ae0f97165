"""The numbers of translations."""
