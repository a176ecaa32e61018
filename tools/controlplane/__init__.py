"""A real Kubernetes control plane for tests: etcd, API server, controller manager, scheduler; no kubelet.

From Python, `ControlPlane`; by hand, `python -m tools.controlplane up | down | path`.
The programs come from `KUBEBUILDER_ASSETS`, from PATH, or are built once from the Go tool module in this folder.
"""

from tools.controlplane.assets import binaries
from tools.controlplane.credentials import User
from tools.controlplane.errors import ControlPlaneError
from tools.controlplane.plane import DEFAULT_CONTROLLERS, ControlPlane

__all__ = ["DEFAULT_CONTROLLERS", "ControlPlane", "ControlPlaneError", "User", "binaries"]
