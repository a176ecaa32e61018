"""Kubeconfig files: found, joined and read as by kubectl; tokens, passwords, client certificates and exec plug-ins."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from serried.cluster import credentials
from serried.cluster.credentials import Access, ConfigError, Tls, TlsCache, bearer, environment_proxy, one_line

#: Seconds that an exec plug-in may take.
EXEC_SECONDS = 120.0

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class _Kebab(msgspec.Struct, rename="kebab", kw_only=True):
    pass


class _Camel(msgspec.Struct, rename="camel", kw_only=True):
    pass


class Cluster(_Kebab):
    """Of each pair, the data go before the file."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    proxy_url: str = ""


class Variable(_Camel):
    name: str
    value: str = ""


class Exec(_Camel):
    """A program that prints an ExecCredential."""

    command: str
    api_version: str
    args: list[str] = []
    env: list[Variable] = []
    install_hint: str = ""
    provide_cluster_info: bool = False


class User(_Kebab):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    username: str = ""
    password: str = ""
    exec: Exec | None = None
    auth_provider: dict[str, Any] | None = None


class Context(_Kebab):
    cluster: str = ""
    user: str = ""


class _NamedCluster(_Kebab):
    name: str
    cluster: Cluster


class _NamedUser(_Kebab):
    name: str
    user: User


class _NamedContext(_Kebab):
    name: str
    context: Context


class Config(_Kebab):
    """One file, or several joined."""

    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


class _Status(_Camel):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(_Camel):
    status: _Status


class Kubeconfig:
    """A kubeconfig file, or several joined as by kubectl ("a:b"); by default $KUBECONFIG or ~/.kube/config."""

    def __init__(self, path: str | Path | None = None, context: str | None = None) -> None:
        self._path = str(path or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        self._context = context
        self._tls = TlsCache()

    async def load(self) -> Access:
        files = self._files()
        if not files:
            raise ConfigError(f"kubeconfig {self._path}: no such file; name one with --kubeconfig or in $KUBECONFIG")
        try:
            return await self._access(*_chosen(_joined([_read(file) for file in files]), self._context))
        except (OSError, ValueError) as error:  # also msgspec's
            where = f"kubeconfig {self._path}" + (f", context {self._context}" if self._context else "")
            raise ConfigError(
                f"{where}: {one_line(error)}; check it with: kubectl --kubeconfig {self._path} version"
            ) from error

    def _files(self) -> list[Path]:
        parts = [Path(part).expanduser() for part in self._path.split(os.pathsep) if part]
        return [part for part in parts if part.is_file()]

    async def _access(self, cluster: Cluster, user: User) -> Access:
        server = cluster.server.rstrip("/")
        if urlsplit(server).scheme not in ("http", "https"):
            raise ValueError(f"the server is {server!r}, not a URL with http or https")
        headers: dict[str, str] = {}
        good_until = None
        certificate = user.client_certificate_data or _content(user.client_certificate)
        key = user.client_key_data or _content(user.client_key)
        if user.exec is not None:
            status = await _run(user.exec, cluster)
            headers = bearer(status.token) if status.token else {}
            if status.client_certificate_data:
                certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
            if status.expiration_timestamp is not None:
                good_until = _renewal(status.expiration_timestamp)
        elif user.token_file:
            headers = bearer(_content(user.token_file).decode())
            good_until = time.monotonic() + credentials.TOKEN_FILE_SECONDS
        elif user.token:
            headers = bearer(user.token)
        elif user.username:
            password = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            headers = {"Authorization": f"Basic {password}"}
        elif user.auth_provider is not None:
            provider = user.auth_provider.get("name", "")
            raise ValueError(f"auth-provider {provider!r} is not supported; use the exec plug-in that took its place")
        authority = cluster.certificate_authority_data or _content(cluster.certificate_authority)
        tls = Tls(authority or None, certificate or None, key or None, verify=not cluster.insecure_skip_tls_verify)
        proxy = cluster.proxy_url or environment_proxy(server)
        if proxy and urlsplit(proxy).scheme != "http":
            raise ValueError(f"the proxy {urlsplit(proxy).hostname} is not reached by http; others are not supported")
        return Access(
            server,
            headers,
            self._tls.context(server, tls),
            server_hostname=cluster.tls_server_name or None,
            proxy=proxy,
            good_until=good_until,
        )


def _read(file: Path) -> Config:
    """One file, its paths made absolute: they are relative to it. Raises `ValueError`, which quotes nothing of it."""
    try:
        content = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        what = [getattr(error, name, None) for name in ("context", "problem")]
        raise ValueError(f"not YAML{where}: {', '.join(filter(None, what)) or 'unreadable'}") from None
    if not isinstance(content, dict):
        raise ValueError("it is empty, or no kubeconfig")
    config = msgspec.convert(_without_nulls(content), Config)
    folder = file.absolute().parent

    def absolute(struct: S, *names: str) -> S:
        paths = {name: getattr(struct, name) for name in names}
        return msgspec.structs.replace(struct, **{name: str(folder / path) for name, path in paths.items() if path})

    clusters = [
        _NamedCluster(name=each.name, cluster=absolute(each.cluster, "certificate_authority"))
        for each in config.clusters
    ]
    users = []
    for each in config.users:
        user = absolute(each.user, "token_file", "client_certificate", "client_key")
        if user.exec is not None and os.sep in user.exec.command:
            user = msgspec.structs.replace(user, exec=absolute(user.exec, "command"))
        users.append(_NamedUser(name=each.name, user=user))
    return msgspec.structs.replace(config, clusters=clusters, users=users)


def _joined(configs: list[Config]) -> Config:
    """Of each name, the first file that has it counts."""
    return Config(
        clusters=[each for config in reversed(configs) for each in config.clusters],
        users=[each for config in reversed(configs) for each in config.users],
        contexts=[each for config in reversed(configs) for each in config.contexts],
        current_context=next((config.current_context for config in configs if config.current_context), ""),
    )


def _chosen(config: Config, context: str | None) -> tuple[Cluster, User]:
    """Raises `ValueError` when something is not there."""
    name = context or config.current_context
    if not name:
        raise ValueError("it names no current-context; choose one with --context")
    chosen = _named("context", name, {each.name: each.context for each in config.contexts})
    cluster = _named("cluster", chosen.cluster, {each.name: each.cluster for each in config.clusters})
    users = {each.name: each.user for each in config.users}
    return cluster, _named("user", chosen.user, users) if chosen.user else User()


def _without_nulls(value: Any) -> Any:
    """A null is the same as nothing, as in Go."""
    if isinstance(value, dict):
        return {str(key): _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _named(what: str, name: str, found: dict[str, T]) -> T:
    if name not in found:
        raise ValueError(f"there is no {what} {name!r}; there are: {', '.join(sorted(found)) or 'none'}")
    return found[name]


def _content(path: str) -> bytes:
    return Path(path).read_bytes() if path else b""


# --- Exec plug-ins


async def _run(plugin: Exec, cluster: Cluster) -> _Status:
    """What the program says. Raises `ValueError` or `OSError`."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {name: value for name, value in _told_of(cluster).items() if value}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {
        **os.environ,
        **{each.name: each.value for each in plugin.env},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    what = f"the exec plug-in {plugin.command}"
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.args, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        hint = f" ({plugin.install_hint.strip()})" if plugin.install_hint else ""
        raise ValueError(f"{what} cannot be run: {error.strerror or error}{hint}") from error
    try:
        async with asyncio.timeout(EXEC_SECONDS):
            out, err = await process.communicate()
    except BaseException as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise ValueError(f"{what} has not ended within {EXEC_SECONDS:.0f} s") from error
        raise
    if process.returncode:
        said = err.decode(errors="replace").strip() or f"it ended with {process.returncode}"
        raise ValueError(f"{what} failed: {said}")
    try:
        return msgspec.json.decode(out, type=_ExecCredential).status
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} printed no ExecCredential: {error}") from error


def _told_of(cluster: Cluster) -> dict[str, Any]:
    authority = cluster.certificate_authority_data or _content(cluster.certificate_authority)
    return {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "proxy-url": cluster.proxy_url,
    }


def _renewal(expires: datetime) -> float:
    """When to ask again, in seconds of `time.monotonic()`."""
    left = (expires - datetime.now(UTC)).total_seconds()
    wait = max(left - credentials.RENEW_BEFORE_SECONDS, left / 2, credentials.LEAST_SECONDS)
    return time.monotonic() + wait
