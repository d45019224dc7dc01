"""Devices: their mesh and kinds, slices to compile for, and the text of compiled programs."""
