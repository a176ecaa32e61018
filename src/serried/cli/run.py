"""`serried run`: the controller as a process."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from pathlib import Path

from serried.cli.common import Failure
from serried.cli.connect import complete, configuration, connect
from serried.control.config import ConfigurationError
from serried.control.run import LeadershipLost, run
from serried.control.served import NotServed


def run_controller(kubeconfig: Path | None, context: str | None, config: Path | None, *, verbose: bool) -> None:
    """Runs until SIGTERM or SIGINT. Raises `Failure`."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    settings = configuration(config)

    # Nearly all that is made here goes without the collector's help: at its usual pace it takes a tenth of our time.
    gc.set_threshold(20_000, 20, 20)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with connect(kubeconfig, context, concurrency=settings.client.concurrency) as cluster:
            logging.getLogger(__name__).info("Kubernetes %s", await cluster.version())
            await cluster.warm(settings.client.concurrency)
            # What is listed then stays: of a hundred thousand nodes, each full collection would take 0.3 s.
            await run(cluster, settings, stop, when_listed=gc.freeze)

    try:
        complete(main)
    except (NotServed, LeadershipLost, ConfigurationError) as error:
        raise Failure(str(error)) from error
