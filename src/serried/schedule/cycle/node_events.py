"""Nodes, pods, volumes, topologies and flavors that were added, changed or deleted."""

from __future__ import annotations

from serried.api.core import Node, Pod
from serried.api.kueue import ResourceFlavor, Topology
from serried.api.meta import Key
from serried.api.names import QueueReason
from serried.model.storage import StorageObject
from serried.schedule.state.routing import refresh
from serried.schedule.state.state import State
from serried.schedule.types.changed import Changed

#: Reasons of a ClusterQueue whose message lists the flavors, or topologies, that there are.
_NAMES_WHAT_IS_THERE = (QueueReason.FLAVOR_NOT_FOUND, QueueReason.TOPOLOGY_NOT_FOUND)


def set_node(state: State, node: Node) -> None:
    if state.world.set_node(node):
        state.requeue.changed(Changed.NODES)


def delete_node(state: State, name: str) -> None:
    if state.world.delete_node(name):
        state.requeue.changed(Changed.NODES)


def set_pod(state: State, pod: Pod) -> None:
    if state.world.set_pod(pod):
        state.requeue.changed(Changed.NODES)


def delete_pod(state: State, key: Key) -> None:
    if state.world.delete_pod(key):
        state.requeue.changed(Changed.NODES)


def set_storage(state: State, obj: StorageObject) -> None:
    if state.world.storage.put(obj):
        state.requeue.changed(Changed.NODES)


def delete_storage(state: State, obj: StorageObject) -> None:
    if state.world.storage.drop(obj):
        state.requeue.changed(Changed.NODES)


def set_topology(state: State, topology: Topology) -> None:
    if state.world.set_topology(topology):
        _topology_changed(state, topology.metadata.name)


def delete_topology(state: State, name: str) -> None:
    if state.world.delete_topology(name):
        _topology_changed(state, name)


def _topology_changed(state: State, name: str) -> None:
    _flavors_changed(state, {flavor for flavor, f in state.flavors.items() if f.spec.topology_name == name})


def set_flavor(state: State, flavor: ResourceFlavor) -> None:
    if state.world.set_flavor(flavor):
        _flavors_changed(state, {flavor.metadata.name})


def delete_flavor(state: State, name: str) -> None:
    if state.world.delete_flavor(name):
        _flavors_changed(state, {name})


def _flavors_changed(state: State, names: set[str]) -> None:
    for key, record in state.workloads.items():
        if record.missing:
            # It may hold places in one of them.
            state.requeue.look_at(key)
    for queue in list(state.cluster_queues.values()):
        if names.intersection(queue.quotas.flavors) or queue.activity.reason in _NAMES_WHAT_IS_THERE:
            refresh(state, queue)
