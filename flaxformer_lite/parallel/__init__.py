"""Devices: the mesh, and which part of each array a device holds."""
