"""Recipes of papers: `teaching.py` computes what a student learns from a run."""
