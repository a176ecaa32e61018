"""Hollow nodes by hand: `python -m tools.hollow_nodes NODES.yaml` plays machines and kubelets for Node manifests.

For a control plane without machines, such as that of `python -m tools.controlplane up`: the nodes become ready, and
pods bound to them run as `serried.embedded.hollow` says, until Ctrl-C. The nodes stay.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from serried.api.core import Node
from serried.cluster.credentials import ConfigError
from serried.cluster.http import HttpCluster
from serried.cluster.protocol import ApiError
from serried.embedded.hollow import HollowNode, HollowNodes


def described(text: str) -> list[HollowNode]:
    """The nodes of a YAML text. Raises `ValueError` when a document of it is no Node."""
    nodes = []
    try:
        for document in filter(None, yaml.safe_load_all(text)):
            if not isinstance(document, dict) or document.get("kind") != "Node":
                raise ValueError(f"only Nodes are expected, and there is {document!r:.60}")
            node = msgspec.convert(document, Node, strict=False)
            labels, allocatable = node.metadata.labels, node.status.allocatable
            nodes.append(HollowNode(node.metadata.name, labels, allocatable, tuple(node.spec.taints)))
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from error
    return nodes


async def play(nodes: Sequence[HollowNode], kubeconfig: Path | None) -> None:
    """Runs the nodes until SIGINT or SIGTERM. Raises what connecting raises, and `ApiError`."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await HttpCluster.from_kubeconfig(kubeconfig) as cluster:
        hollow = HollowNodes(cluster)
        await hollow.add(nodes)
        await hollow.start()
        print(f"{len(nodes)} hollow nodes are ready; Ctrl-C ends their kubelet.", flush=True)
        await stop.wait()
        await hollow.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 after an error, which is told on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tools.hollow_nodes", description=__doc__)
    parser.add_argument("manifests", type=Path, metavar="NODES.yaml", help="Node manifests")
    parser.add_argument("--kubeconfig", type=Path, help="otherwise $KUBECONFIG or ~/.kube/config")
    chosen = parser.parse_args(arguments)
    try:
        asyncio.run(play(described(chosen.manifests.read_text()), chosen.kubeconfig))
    except (OSError, ValueError, ConfigError, ApiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
