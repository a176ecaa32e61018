"""Where the API server is and how to be let in: kubeconfig files and in-cluster service accounts.

kubernetes-asyncio reads the files, runs exec plug-ins and refreshes tokens; what its own client would be
given is turned into `Access`, which is all that a request of ours needs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import urllib.parse
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import incluster_config, kube_config
from kubernetes_asyncio.config.config_exception import ConfigException

log = logging.getLogger(__name__)

#: Files with tokens are read again after this many seconds: the kubelet and others rotate them.
TOKEN_FILE_SECONDS = 60.0
#: Tokens with a known end are renewed this many seconds before it.
RENEW_BEFORE_SECONDS = 120.0
#: An exec plug-in is not asked more often than this, whatever end it gives its tokens.
LEAST_SECONDS = 5.0

#: What kubernetes-asyncio lets through when a file is not as it expects.
_BROKEN = (
    ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
)


class ConfigError(Exception):
    """The cluster cannot be reached as configured. The message says which file, what is wrong and what to do."""


@dataclass(frozen=True)
class Access:
    """What one request needs. Equal `ssl` objects share pooled connections."""

    #: Scheme, host, port and perhaps a path prefix; no slash at the end.
    server: str
    headers: dict[str, str]
    ssl: ssl.SSLContext | None = None
    #: Name the server's certificate must have, where it is not the host's.
    server_hostname: str | None = None
    proxy: str | None = None
    #: When to load anew, in `loop.time()` seconds; None: not before the server answers 401.
    good_until: float | None = None


class AccessSource(Protocol):
    async def load(self) -> Access:
        """Reads everything anew. Raises `ConfigError`."""
        ...


class Tls:
    """Makes SSL contexts, and the same one again while the files' contents are the same, so that pools survive."""

    def __init__(self) -> None:
        self._contents: tuple[bytes | None, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self, config: Configuration) -> ssl.SSLContext | None:
        if not (config.host or "").startswith("https"):
            return None
        files = (config.ssl_ca_cert, config.cert_file, config.key_file)
        contents = (*(Path(file).read_bytes() if file else None for file in files), bytes([config.verify_ssl]))
        if self._context is None or contents != self._contents:
            context = ssl.create_default_context(cafile=config.ssl_ca_cert)
            # Newer Pythons also insist on extensions that many clusters' own authorities leave out. Go does not.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if config.cert_file:
                context.load_cert_chain(config.cert_file, config.key_file)
            if not config.verify_ssl:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._contents, self._context = contents, context
        return self._context


class Kubeconfig:
    """A kubeconfig file, or several joined as by kubectl ("a:b"); by default $KUBECONFIG or ~/.kube/config."""

    def __init__(self, path: str | Path | None = None, context: str | None = None) -> None:
        self._path = str(path or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        self._context = context
        self._tls = Tls()

    async def load(self) -> Access:
        if not self._exists():
            raise ConfigError(f"kubeconfig {self._path}: no such file; name one with --kubeconfig or in $KUBECONFIG")
        try:
            return await self._load()
        except _BROKEN as error:
            where = f"kubeconfig {self._path}" + (f", context {self._context}" if self._context else "")
            # The library does not mind the shape of a file, and falls over it.
            shapeless = isinstance(error, (TypeError, AttributeError, LookupError, AssertionError))
            what = ("it is empty, or no kubeconfig: " if shapeless else "") + _one_line(error)
            raise ConfigError(f"{where}: {what}; check it with: kubectl --kubeconfig {self._path} version") from error

    def _exists(self) -> bool:
        parts = self._path.split(kube_config.ENV_KUBECONFIG_PATH_SEPARATOR)
        return any(Path(part).expanduser().is_file() for part in parts if part)

    async def _load(self) -> Access:
        merger = kube_config.KubeConfigMerger(self._path)

        def persist(_config: object) -> None:
            # An OpenID provider may give each refresh token once only: as kubectl does, keep the new one in the file.
            try:
                merger.save_changes()
            except OSError as error:
                log.warning("kubeconfig %s: the renewed token could not be saved: %s", self._path, error)

        loader = kube_config.KubeConfigLoader(
            merger.config, active_context=self._context, config_base_path=None, config_persister=persist
        )
        config = Configuration()
        await loader.load_and_set(config)
        now = asyncio.get_running_loop().time()
        expiry: datetime | None = getattr(loader, "exec_plugin_expiry", None)
        good_until = None
        if expiry is not None:
            left = (expiry - datetime.now(UTC)).total_seconds()
            good_until = now + max(left - RENEW_BEFORE_SECONDS, left / 2, LEAST_SECONDS)
        elif _has_token_file(merger, loader):
            good_until = now + TOKEN_FILE_SECONDS
        try:
            return _access(config, self._tls, good_until)
        finally:
            _remove_key_files(config)


class InCluster:
    """The service account of the pod this process runs in."""

    def __init__(
        self,
        token: str = incluster_config.SERVICE_TOKEN_FILENAME,
        certificate: str = incluster_config.SERVICE_CERT_FILENAME,
    ) -> None:
        self._token = token
        self._certificate = certificate
        self._tls = Tls()

    async def load(self) -> Access:
        config = Configuration()
        try:
            incluster_config.InClusterConfigLoader(
                self._token, self._certificate, try_refresh_token=False
            ).load_and_set(config)
            return _access(config, self._tls, asyncio.get_running_loop().time() + TOKEN_FILE_SECONDS)
        except _BROKEN as error:
            raise ConfigError(
                f"in-cluster configuration ({self._token}, {self._certificate}): {_one_line(error)}; "
                "run in a pod with a service account, or give a kubeconfig with --kubeconfig"
            ) from error


def _access(config: Configuration, tls: Tls, good_until: float | None) -> Access:
    # Token files often end in a line break, which has no place in a header.
    authorization = " ".join(config.api_key.get("BearerToken", "").split())
    server = (config.host or "").rstrip("/")
    return Access(
        server=server,
        headers={"Authorization": authorization} if authorization else {},
        ssl=tls.context(config),
        server_hostname=config.tls_server_name,
        proxy=config.proxy or _environment_proxy(server),
        good_until=good_until,
    )


def _environment_proxy(server: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY ask for."""
    url = urllib.parse.urlsplit(server)
    if not url.hostname or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _has_token_file(merger: kube_config.KubeConfigMerger, loader: kube_config.KubeConfigLoader) -> bool:
    user = (loader.current_context or {}).get("context", {}).get("user")
    entries = [entry for config in merger.config_files.values() for entry in config.get("users") or ()]
    return any(entry["name"] == user and "tokenFile" in (entry["user"] or {}) for entry in entries)


def _remove_key_files(config: Configuration) -> None:
    """Removes the files kubernetes-asyncio made of inline certificates and keys: they are loaded, and keys are secret.

    It would leave them till the end of the process, and for ever if that is killed.
    """
    made: dict[str, str] = getattr(kube_config, "_temp_files", {})
    for content, file in list(made.items()):
        if file in (config.ssl_ca_cert, config.cert_file, config.key_file):
            del made[content]
            Path(file).unlink(missing_ok=True)


def _one_line(error: BaseException) -> str:
    """Its message. The library quotes whole entries of the file in some, with the tokens in them: not here."""
    return re.sub(r"\{.*\}", "{…}", " ".join(str(error).split())) or type(error).__name__
