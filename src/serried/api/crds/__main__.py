"""Write the definitions as files, one for each kind: `python -m serried.api.crds DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

from serried.api.crds import files

if __name__ == "__main__":
    for name, content in files().items():
        Path(sys.argv[1], name).write_text(content)
