"""One scheduling cycle: nomination, order, admission, the second pass; and the events of workloads."""
