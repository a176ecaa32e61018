"""Gangs that we place, as kube-scheduler sees them: each pod passes where it is planned, with all others in place."""

from __future__ import annotations

from random import Random

import msgspec

from serried.api.core import PodTemplateMeta, PodTemplateSpec
from serried.api.kueue import PodSetTopologyRequest
from serried.api.names import HOSTNAME
from serried.model.pod_constraints import read_constraints
from serried.model.pod_index import PodKind
from serried.model.pods import pod_requests
from serried.model.requests import PodSetRequest
from serried.place.place import place
from serried.place.result import NoPlacement
from tests.parity.objects import RACK, Manifest, Scene, gang
from tests.parity.ours import KINDS, Judge
from tests.parity.theirs import Api, put_up, take_down, verdicts
from tests.unit.model.clusters import flavor, topology
from tools.controlplane import ControlPlane


def refused(plane: ControlPlane, api: Api, scene: Scene, random: Random, count: int) -> tuple[int, int, list[str]]:
    """How many of `count` random gangs we found a place for, of how many pods; and which of them kube-scheduler would
    not let go where they are planned: of each gang it is asked about one pod, with the others on their nodes."""
    put_up(api, scene)
    try:
        judge = Judge({plural: api.list(plural) for plural in KINDS})
        judge.world.set_topology(topology(RACK, HOSTNAME))
        judge.world.set_flavor(flavor())
        planned: dict[tuple[str, str], tuple[str, Manifest]] = {}
        pods = 0
        others: list[Manifest] = []
        for number in range(count):
            template = gang(random, scene, f"gang-{number}")
            size = random.randint(2, 6)
            hosts = _place(judge, template, f"gang-{number}", size, required=random.random() < 0.3)
            if not hosts:
                continue
            pods += size
            asked = random.randrange(size)
            for i, host in enumerate(hosts):
                pod = {**template, "metadata": {**template["metadata"], "name": f"gang-{number}-{i}"}}
                if i == asked:
                    scene.pods.append(pod)
                    planned[pod["metadata"]["namespace"], pod["metadata"]["name"]] = (host, template)
                else:
                    others.append({**pod, "spec": {**pod["spec"], "nodeName": host}})
        api.add(others)
        scene.bound += others
        api.add(scene.pods)
        found = verdicts(plane, api, scene)
    finally:
        take_down(api, scene)
    wrong = [
        f"{key} is planned on {host}, and kube-scheduler lets it go to {sorted(found[key][0])}: {found[key][1]}\n{spec}"
        for key, (host, spec) in planned.items()
        if host not in found[key][0]
    ]
    return len(planned), pods, wrong


def _place(judge: Judge, template: Manifest, name: str, size: int, *, required: bool) -> list[str]:
    """The node of each pod; [] if there is no place. Where there is one, it is held."""
    read = msgspec.convert(template, PodTemplateSpec)
    meta: PodTemplateMeta = read.metadata
    namespace = template["metadata"]["namespace"]
    kind = PodKind(namespace, meta.labels, read_constraints(read.spec, namespace, meta.labels))
    wish = PodSetTopologyRequest(required=RACK) if required else PodSetTopologyRequest(unconstrained=True)
    affinity = read.spec.affinity.node_affinity if read.spec.affinity is not None else None
    pod_set = PodSetRequest(
        "main",
        size,
        pod_requests(read.spec),
        topology=wish,
        node_selector=read.spec.node_selector,
        node_affinity=affinity,
        tolerations=read.spec.tolerations,
        kind=kind,
    )
    found = place(judge.world, "gpu", [pod_set])
    if isinstance(found, NoPlacement):
        return []
    judge.world.hold((namespace, name), found, [pod_set])
    judge.world.journal.commit()
    return [values[-1] for values, number in found[0].domains for _ in range(number)]
