"""What the parts of the decision hand to each other: options, reasons, decisions, workloads as read."""
