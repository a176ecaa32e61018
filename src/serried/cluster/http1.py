"""HTTP/1.1 responses, taken from bytes: heads and chunked bodies. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: Bytes of a head, or of a line between chunks; beyond it this is no API server.
LONGEST_LINE: Final = 1 << 16


class Lost(ConnectionError):
    """The connection broke, was closed, or what came over it is not HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a response."""

    status: int
    #: names in lower case
    headers: dict[str, str]
    #: bytes of the body; None: it is chunked, or goes on to the end of the connection
    length: int | None
    chunked: bool
    #: whether another request may follow
    persistent: bool


class Chunks:
    """Takes a chunked body apart, however it is cut into pieces."""

    def __init__(self) -> None:
        self.complete = False
        #: what is not read yet: the beginning of a line; at the end what follows the body
        self.rest = b""
        self._left = 0  # bytes of a chunk that are to come
        self._line: Literal["size", "end of chunk", "trailer"] = "size"  # what comes when no byte of a chunk does

    def feed(self, data: bytes) -> list[bytes]:
        """What these bytes bring of the body. Raises `Lost` when they are not such a body."""
        data = self.rest + data
        at = 0
        pieces = []
        while not self.complete:
            if self._left:
                piece = data[at : at + self._left]
                if not piece:
                    break
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > LONGEST_LINE:
                    raise Lost("not an HTTP response: a line between chunks is too long")
                break
            self._take(data[at:end])
            at = end + 2
        self.rest = data[at:]
        return pieces

    def _take(self, line: bytes) -> None:
        if self._line == "end of chunk":
            self._line = "size"
        elif self._line == "trailer":
            self.complete = not line
        else:
            self._left = _whole(line.split(b";", 1)[0].decode("latin-1").strip(), 16)
            self._line = "end of chunk" if self._left else "trailer"


def parse_head(head: bytes) -> Head:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise Lost(f"not an HTTP response: {first[:100]!r}")
    status = _whole(rest[:3])
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    length = None
    if status in (204, 304):
        length = 0
    elif "content-length" in headers and not chunked:
        length = _whole(headers["content-length"])
    persistent = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Head(status, headers, length, chunked, persistent)


def _whole(text: str, base: int = 10) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise Lost(f"not an HTTP response: {text[:100]!r} where a number should be")
    return number
