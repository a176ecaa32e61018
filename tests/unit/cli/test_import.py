"""What `serried run` costs before it does anything."""

import json
import subprocess
import sys

PROGRAM = """
import json, pathlib, sys
import serried.cli.run
status = pathlib.Path("/proc/self/status").read_text()
peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps({"peak": int(peak) / 1024, "packages": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def test_importing_it_takes_little_memory_and_no_package_that_may_not_be_needed() -> None:
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    found = json.loads(out)
    assert found["peak"] <= 60  # MB
    assert not {"aiohttp", "cryptography", "rich"} & set(found["packages"])
