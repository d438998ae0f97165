"""Tokens in, logits out: the Transformer and its parts, as pure Flax Linen modules."""
