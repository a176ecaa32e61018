"""Queues and workloads, and what changes in them: records, pending queues, requeueing, usage."""
