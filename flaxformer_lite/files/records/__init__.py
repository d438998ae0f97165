"""Kinds of records: what a line of data can be, and how tokenizers read it."""
