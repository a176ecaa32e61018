"""What can change that could let in who waits: the one vocabulary of waiting and of being looked at again."""

from __future__ import annotations

from enum import Flag, auto


class Changed(Flag):
    """A kind of change, and what a refused workload is blocked on; like the queueing hints of kube-scheduler."""

    NOTHING = 0
    #: quota was given back in the tree of cohorts
    RELEASED = auto()
    #: somebody in the tree of cohorts was admitted on borrowed quota: whoever may reclaim it may preempt more now
    BORROWED = auto()
    #: a ClusterQueue or Cohort of the tree came, went or changed: what could never fit may do so now
    QUOTAS = auto()
    #: nodes, flavors, pods, and what workloads hold on nodes
    NODES = auto()
    #: those who are preempted for it have gone, and nothing else: what it needs is kept for it
    VICTIMS = auto()
