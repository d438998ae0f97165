"""A trained run, ready to use."""
