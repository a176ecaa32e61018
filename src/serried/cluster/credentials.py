"""How to be let in by an API server: what a request needs, TLS, and the service account of the pod we run in."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

#: Files with tokens are read again after this many seconds: the kubelet and others rotate them.
TOKEN_FILE_SECONDS = 60.0
#: Tokens with a known end are renewed this many seconds before it.
RENEW_BEFORE_SECONDS = 120.0
#: An exec plug-in is not asked more often than this, whatever end it gives its tokens.
LEAST_SECONDS = 5.0

_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class ConfigError(Exception):
    """The cluster cannot be reached as configured. The message says which file, what is wrong and what to do."""


@dataclass(frozen=True)
class Access:
    """What one request needs. Equal `ssl` objects share pooled connections."""

    #: Scheme, host, port and perhaps a path prefix; no slash at the end.
    server: str
    headers: dict[str, str]
    #: None: no TLS
    ssl: ssl.SSLContext | None = None
    #: Name the server's certificate must have, where it is not the host's.
    server_hostname: str | None = None
    #: "http://host:port", perhaps with a name and a password
    proxy: str | None = None
    #: When to load anew, in seconds of `time.monotonic()`; None: not before the server answers 401.
    good_until: float | None = None


class AccessSource(Protocol):
    async def load(self) -> Access:
        """Reads everything anew. Raises `ConfigError`."""
        ...


@dataclass(frozen=True)
class Tls:
    """What an SSL context is made of; certificates and keys are PEM texts."""

    #: None: the authorities that the system trusts
    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises `ValueError` or `OSError`."""
        context = ssl.create_default_context(cadata=self.authority.decode("ascii") if self.authority else None)
        # Newer Pythons also insist on extensions that many clusters' own authorities leave out. Go does not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            # ssl reads them from a file only. This one is nobody else's to read, and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                file.write(self.certificate + b"\n" + (self.key or b""))
                file.flush()
                context.load_cert_chain(file.name)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class TlsCache:
    """Makes SSL contexts, and the same one again while its contents are the same, so that connections survive."""

    def __init__(self) -> None:
        self._last: tuple[Tls, ssl.SSLContext] | None = None

    def context(self, server: str, tls: Tls) -> ssl.SSLContext | None:
        """For a server with this URL; None if it is reached without TLS. Raises `ValueError` or `OSError`."""
        if urlsplit(server).scheme != "https":
            return None
        if self._last is None or self._last[0] != tls:
            self._last = tls, tls.context()
        return self._last[1]


class InCluster:
    """The service account of the pod this process runs in."""

    def __init__(self, token: str = f"{_SERVICE_ACCOUNT}/token", authority: str = f"{_SERVICE_ACCOUNT}/ca.crt") -> None:
        self._token = token
        self._authority = authority
        self._tls = TlsCache()

    async def load(self) -> Access:
        return self._load()

    def _load(self) -> Access:
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
            return Access(
                server,
                bearer(Path(self._token).read_text()),
                self._tls.context(server, Tls(authority=Path(self._authority).read_bytes())),
                proxy=environment_proxy(server),
                good_until=time.monotonic() + TOKEN_FILE_SECONDS,
            )
        except (KeyError, OSError, ValueError) as error:
            why = f"{error} is not set" if isinstance(error, KeyError) else one_line(error)
            raise ConfigError(
                f"in-cluster configuration (token {self._token}, authority {self._authority}): {why}; "
                "run in a pod with a service account, or give a kubeconfig with --kubeconfig"
            ) from error


def bearer(token: str) -> dict[str, str]:
    """The header for a token. Raises `ValueError` when it is none; that it ends in a line break is usual for files."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or not token:
        raise ValueError("the token is empty, or has characters that no header may have")
    return {"Authorization": f"Bearer {token}"}


def environment_proxy(server: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY ask for."""
    url = urlsplit(server)
    if not any(os.environ.get(name) for name in (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper())):
        return None
    import urllib.request  # it costs much, and few need it

    if not url.hostname or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
