"""Tokens for the masks of texts."""
