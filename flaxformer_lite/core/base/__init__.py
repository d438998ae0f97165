"""Bounds of settings, paths of arrays, groups, facts about devices: for every room of the core."""
