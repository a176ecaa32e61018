"""What happens in the demo: a cluster, three teams that share it, and their day. Data only; the same every time.

The names of what is in the cluster are those a platform team would choose. Times are minutes since the day began.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from serried.api import names

BLOCKS, RACKS, NODES, GPUS = 2, 4, 8, 8  # blocks; racks in a block; nodes in a rack; GPUs in a node
TOTAL_GPUS: Final = BLOCKS * RACKS * NODES * GPUS

BLOCK: Final = "topology.serried.io/block"
RACK: Final = "topology.serried.io/rack"
GPU: Final = "nvidia.com/gpu"
TOPOLOGY: Final = "gpu-network"
FLAVOR: Final = "h100"
QUEUE: Final = "training"  # the LocalQueue in each team's namespace
POOL: Final = {"serried.io/pool": "h100"}

#: When the day begins, and how many of its seconds go by in one real second at speed 1.
MORNING: Final = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
PACE: Final = 600.0

#: WorkloadPriorityClasses.
PRIORITIES: Final = {"production": 1000, "exploratory": 100}


@dataclass(frozen=True)
class Team:
    """A namespace with a LocalQueue, and the ClusterQueue of the same name that it leads to."""

    name: str
    nominal_gpus: int
    strategy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"


TEAMS: Final = (Team("language", 256), Team("vision", 160), Team("research", 96, "StrictFIFO"))

Topology = Literal["", "preferred rack", "required rack", "required block"]


@dataclass(frozen=True)
class Training:
    """One Job: who submits it and when, what it asks for, and how long it runs once all its pods are there."""

    at: float
    name: str
    team: str
    pods: int
    #: of each pod
    gpus: int
    minutes: float
    topology: Topology = ""
    priority: str = "exploratory"
    fails: bool = False

    def manifest(self) -> dict[str, Any]:
        """The Job as a researcher would submit it; the webhook adds the rest."""
        annotations = {names.RUN_SECONDS: f"{self.minutes * 60:g}"}
        if self.fails:
            annotations[names.RUN_RESULT] = "fail"
        if self.topology:
            kind, level = self.topology.split()
            annotation = names.REQUIRED_TOPOLOGY if kind == "required" else names.PREFERRED_TOPOLOGY
            annotations[annotation] = RACK if level == "rack" else BLOCK
        gpus = {GPU: str(self.gpus)}
        container = {"name": "train", "image": "train", "resources": {"requests": gpus, "limits": gpus}}
        return {
            "metadata": {
                "name": self.name,
                "labels": {names.QUEUE_NAME: QUEUE, names.PRIORITY_CLASS: self.priority},
            },
            "spec": {
                "parallelism": self.pods,
                "completions": self.pods,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            },
        }


@dataclass(frozen=True)
class NodePlace:
    """A node of the cluster and where it stands."""

    node: str
    block: str
    rack: str

    @property
    def labels(self) -> dict[str, str]:
        return {BLOCK: self.block, RACK: self.rack, **POOL}


#: All nodes, in topology order.
PLACES: Final = tuple(
    NodePlace(f"node-{(block * RACKS + rack) * NODES + node:02d}", f"block-{block}", f"rack-{rack}")
    for block in range(BLOCKS)
    for rack in range(RACKS)
    for node in range(NODES)
)

_NEAR: Final = "preferred rack"
_ONE_RACK: Final = "required rack"
_ONE_BLOCK: Final = "required block"

#: The day's Jobs, by the time of their submission.
DAY: Final = (
    Training(0, "llama-pretrain", "language", 16, 8, 170, _ONE_BLOCK, "production"),
    Training(2, "vision-pretrain", "vision", 8, 8, 150, _ONE_RACK, "production"),
    Training(4, "notebook-ana", "research", 1, 1, 200),
    Training(5, "notebook-ben", "research", 1, 2, 90),
    Training(7, "llama-sft", "language", 4, 8, 60, _NEAR),
    Training(9, "detector-tune", "vision", 2, 8, 70, _NEAR),
    Training(11, "eval-nightly", "research", 8, 1, 45),
    Training(14, "ring-attention", "research", 9, 8, 60, _ONE_RACK),
    Training(17, "reward-model", "language", 2, 8, 60, _NEAR),
    Training(20, "diffusion-pretrain", "vision", 8, 8, 120, _ONE_RACK, "production"),
    Training(24, "code-sft", "language", 4, 8, 85, _NEAR),
    Training(28, "moe-ablation", "research", 4, 8, 110, _ONE_RACK),
    Training(33, "segment-tune", "vision", 4, 8, 60, _NEAR),
    Training(38, "llama-dpo", "language", 4, 8, 50, _NEAR),
    Training(42, "world-model", "research", 2, 8, 100, _NEAR),
    Training(46, "scaling-1b", "research", 4, 8, 100, _ONE_RACK),
    Training(52, "eval-vision", "vision", 4, 2, 30),
    Training(58, "tokenizer-eval", "language", 2, 4, 30),
    Training(66, "long-context-sft", "language", 4, 8, 65, _NEAR),
    Training(72, "foundation-70b", "research", 16, 8, 240, _ONE_BLOCK),
    Training(78, "audio-tune", "vision", 2, 8, 25, _NEAR, fails=True),
    Training(84, "llama-rlhf", "language", 8, 8, 45, _ONE_RACK),
    Training(92, "scaling-3b", "research", 8, 8, 70, _ONE_RACK),
    Training(98, "video-pretrain", "vision", 12, 8, 100, _ONE_BLOCK, "production"),
    Training(106, "pose-tune", "vision", 1, 8, 40),
    Training(112, "safety-eval", "language", 4, 2, 30),
    Training(120, "notebook-chen", "research", 1, 1, 150),
    Training(128, "moe-pretrain", "language", 24, 8, 140, _ONE_BLOCK, "production"),
    Training(134, "distill-8b", "language", 4, 8, 60, _NEAR),
    Training(140, "prompt-eval", "language", 8, 1, 25),
    Training(148, "caption-tune", "vision", 4, 8, 60, _NEAR),
    Training(156, "eval-midday", "research", 8, 1, 30),
    Training(164, "scaling-7b", "research", 8, 8, 80, _ONE_RACK),
    Training(174, "quant-sweep", "research", 4, 4, 60, _NEAR),
    Training(184, "lora-support", "language", 1, 4, 40),
    Training(194, "diffusion-xl", "vision", 8, 8, 90, _ONE_RACK),
    Training(204, "lora-legal", "language", 1, 4, 40),
    Training(214, "ocr-tune", "vision", 2, 8, 50, _NEAR),
    Training(226, "depth-pretrain", "vision", 8, 8, 80, _ONE_RACK),
    Training(238, "scaling-13b", "research", 8, 8, 70, _ONE_RACK),
    Training(250, "llama-instruct", "language", 8, 8, 45, _ONE_RACK),
    Training(262, "eval-evening", "research", 8, 1, 40),
    Training(274, "agent-sft", "language", 4, 8, 50, _NEAR),
)
