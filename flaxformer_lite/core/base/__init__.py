"""Bounds of settings, paths of arrays, facts about devices: for every room of the core."""
