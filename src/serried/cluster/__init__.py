"""Talking to Kubernetes: the `Cluster` protocol, its HTTP implementation, informers, leases.

Decides nothing: what to write is decided above, in `control`.
"""
