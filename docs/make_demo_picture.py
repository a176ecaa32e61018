"""Draws docs/demo.svg: one moment of `serried demo`, from a real run. Run it in the project's folder.

.venv/bin/python docs/make_demo_picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import uvloop
from rich.console import Console
from rich.text import Text

from serried.cli import demo_story as story
from serried.cli.demo import Play, perform
from serried.cli.live_view import draw

_WIDTH, _HEIGHT = 104, 32
#: Minutes of the day between which a busy moment is looked for.
_FROM, _UNTIL = 88.0, 190.0


def main() -> None:
    moments: list[tuple[int, Text]] = []

    def look(play: Play) -> None:
        if play.clock.minutes < _FROM:
            return
        assembles = any(0 < len(r.pods) < r.training.pods for r in play.day.active if r.phase == "assembling")
        interest = play.day.busy + 100 * assembles + 100 * len({wait.layer for wait in play.waits})
        moments.append((interest, draw(play.day, play.waits, play.clock, _WIDTH, _HEIGHT)))

    uvloop.run(perform(story.DAY, 1.0, _UNTIL * 60 / story.PACE, look))
    _, picture = max(moments, key=lambda moment: moment[0])
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture)
    svg = console.export_svg(title="serried demo", unique_id="serried-demo")
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)  # some viewers eat leading blanks otherwise
    # The fonts rich names are on somebody's server; any monospaced font will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    Path(__file__).with_name("demo.svg").write_text(re.sub(r"[ \t]+\n", "\n", svg))


if __name__ == "__main__":
    main()
