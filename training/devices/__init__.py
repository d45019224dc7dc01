"""Devices: their mesh, their kinds, slices that are elsewhere, and what compilers leave."""
