"""A Kubernetes API server in memory, hollow nodes and a Job controller: for the demo, tests and simulation.

Here: what stands in for a cluster, behind the same `Cluster` protocol as the real one.
Not here: scheduling of any kind, and nothing that behaves differently from Kubernetes for our convenience.
"""
