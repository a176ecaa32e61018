"""Our verdicts and kube-scheduler's, pod by pod."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import msgspec
import numpy as np

from serried.api.core import Pod
from tests.parity.gangs import refused
from tests.parity.objects import gang_scene, scene
from tests.parity.ours import KINDS, Judge
from tests.parity.theirs import Api, put_up, take_down, verdicts
from tools.controlplane import ControlPlane


@dataclass
class Comparison:
    """What came out."""

    pods: int = 0
    #: (pod, node) pairs that both judged
    pairs: int = 0
    allowed: int = 0
    #: pods that could go nowhere
    nowhere: int = 0
    #: pods that we would leave to kube-scheduler
    handed_over: int = 0
    #: nodes that one filter alone excludes, by filter
    decisive: Counter[str] = field(default_factory=Counter)
    #: where we put nobody although kube-scheduler would, by reason
    deliberate: Counter[str] = field(default_factory=Counter)
    #: what has no explanation
    differences: list[str] = field(default_factory=list)


def compare(plane: ControlPlane, *, seed: int, scenes: int, pods: int) -> Comparison:
    """Judges random pods on random clusters."""
    result = Comparison()
    api = Api(plane)
    try:
        for number in range(scenes):
            _compare(plane, api, f"s{seed}-{number}", Random(f"{seed}/{number}"), pods, result)
    finally:
        api.close()
    return result


def compare_gangs(plane: ControlPlane, *, seed: int, scenes: int, gangs: int) -> tuple[int, int, list[str]]:
    """Places random gangs on random clusters: how many found a place, of how many pods, and what is wrong with them."""
    placed = pods = 0
    wrong: list[str] = []
    api = Api(plane)
    try:
        for number in range(scenes):
            random = Random(f"gangs {seed}/{number}")
            found = refused(plane, api, gang_scene(random, f"g{seed}-{number}"), random, gangs)
            placed, pods, wrong = placed + found[0], pods + found[1], wrong + found[2]
    finally:
        api.close()
    return placed, pods, wrong


def _compare(plane: ControlPlane, api: Api, name: str, random: Random, pods: int, result: Comparison) -> None:
    made = scene(random, name, pods)
    put_up(api, made)
    try:
        objects = {plural: api.list(plural) for plural in KINDS}
        theirs = verdicts(plane, api, made)
    finally:
        take_down(api, made)
    judge = Judge(objects)
    decoded = {(p["metadata"]["namespace"], p["metadata"]["name"]): msgspec.convert(p, Pod) for p in objects["pods"]}
    for key, (passed, message) in sorted(theirs.items()):
        masks = judge.masks(decoded[key])
        left = np.logical_and.reduce(list(masks.values()))
        found = judge.names(left)
        result.pods += 1
        result.pairs += len(made.nodes)
        result.allowed += len(passed)
        result.nowhere += not passed
        result.handed_over += bool(judge.handed_over(decoded[key]))
        for name in masks:
            others = np.logical_and.reduce([m for n, m in masks.items() if n != name])
            result.decisive[name] += len(judge.names(others & ~masks[name]))
        for reason, rows in judge.deliberate(decoded[key]).items():
            result.deliberate[reason] += len(judge.names(left & rows))
        if found != passed:
            spec = next(p for p in made.pods if (p["metadata"]["namespace"], p["metadata"]["name"]) == key)
            result.differences.append(
                f"{key}: only ours {sorted(found - passed)}, only kube-scheduler's {sorted(passed - found)} {message}\n"
                f"{json.dumps(spec)}"
            )
