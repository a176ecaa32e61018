"""What can change that could let in who waits: the one vocabulary of waiting and waking."""

from __future__ import annotations

from enum import Flag, auto


class Changed(Flag):
    """Kinds of change, and what a refused workload is blocked on. Kueue and kube-scheduler have queueing hints."""

    NOTHING = 0
    #: quota was given back in the tree of cohorts
    RELEASED = auto()
    #: nodes, pods and what workloads hold on nodes
    NODES = auto()
    #: those who are preempted for it have gone, and nothing else: what it needs is kept for it
    VICTIMS = auto()
