"""`serried run` as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def serried_run(kubeconfig: Path, log: Path, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`serried run` as a process; killed at the end if it still runs."""
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "serried.cli.main", "run", "--kubeconfig", str(kubeconfig), *more),
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
