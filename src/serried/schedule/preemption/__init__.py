"""Which admitted workloads to preempt: candidates, classical, fair sharing, and the tie-break by placement."""
