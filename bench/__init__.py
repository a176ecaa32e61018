"""Benchmarks. They print and record numbers; no test depends on a time."""
