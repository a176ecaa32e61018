"""Flavor assignment: which flavors, and which topology domains in them, a workload would get."""
