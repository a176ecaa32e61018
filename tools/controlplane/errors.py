"""The one error this tool raises on purpose: its text says what failed, where, and what to do."""


class ControlPlaneError(Exception):
    """The control plane could not be built, started or stopped; nothing is left running."""
