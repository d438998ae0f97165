"""Weights and settings of other systems, in and out."""
