"""Gang scheduling and topology-aware placement for AI training on Kubernetes, in one process.

The package is a row of rooms; each imports only from those below it:

    cli         the command line
    control     the running controller: wiring, reconcile loops, the executor of decisions
    embedded    a Kubernetes API server in memory, hollow nodes and a Job controller
    cluster     talking to Kubernetes
    observe     metrics, events and reports
    schedule    the decision: queues, the cycle, preemption, explanation
    gang        pod groups and the plan of their bindings
    place       where: topology domains and what fits in them
    quota       how much: flavors, nominal quota, borrowing
    jobs        how a Job becomes pod sets and is started and stopped
    model       nodes, capacity, usage and the journal
    api         wire types, quantities and names

From `schedule` down to `api` nothing does I/O, reads a clock or draws a random number: time is an argument.
"""

__version__ = "0.1.0"
