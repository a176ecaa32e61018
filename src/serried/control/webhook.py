"""The mutating webhook for jobs: suspended from the start, and Serried's to bind.

It saves a job that has a queue from running for a moment before it is queued, and it is the only moment at which
`schedulerName` can be set. Without it everything works too, the reconciler then suspends and kube-scheduler binds.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serried.api import names
from serried.api.meta import Key
from serried.api.resources import CLAIMS, MUTATING_WEBHOOKS, STORAGE_CLASSES, VOLUMES
from serried.cluster.protocol import AlreadyExists, ApiError, Cluster, NotFound
from serried.control.config import ConfigurationError, Webhook
from serried.jobs import KINDS
from serried.jobs.handover import claims_of, left_to_kube_scheduler, read_pod_sets
from serried.jobs.kind import Addition, JobKind
from serried.model.storage import Storage

log = logging.getLogger(__name__)

NAME = "serried"
_LIFETIME = timedelta(days=365)
#: Claims of one job that are looked at.
_CLAIMS = 16


class _Request(msgspec.Struct):
    uid: str
    object: dict[str, Any]
    namespace: str = ""
    operation: str = "CREATE"


class _Review(msgspec.Struct):
    request: _Request


def path(kind: JobKind[Any]) -> str:
    """Where the API server sends jobs of this kind: /mutate-batch-v1-job, as other webhooks name theirs."""
    resource = kind.resource
    return f"/mutate-{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


async def review(body: bytes, kind: JobKind[Any], cluster: Cluster, *, bind: bool) -> dict[str, Any]:
    """The answer to an AdmissionReview. Raises `msgspec.MsgspecError` when the body is none."""
    request = msgspec.json.decode(body, type=_Review).request
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    additions: list[Addition] = []
    if request.operation == "CREATE":
        reason = await _left_to_kube_scheduler(cluster, kind, request) if bind else ""
        additions = kind.admit(request.object, bind=bind and not reason)
        if reason:
            response["warnings"] = [f"the pods are left to kube-scheduler: {reason}"]
    if additions:
        operations = [_operation(addition) for addition in additions]
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


async def _left_to_kube_scheduler(cluster: Cluster, kind: JobKind[Any], request: _Request) -> str:
    """Why pods of a new job are not ours to bind. Of the claims they name the first few are asked for; what cannot be
    read now is ours, and waits if need be."""
    pod_sets = read_pod_sets(kind, request.object)
    storage = Storage()
    with suppress(ApiError):
        for key in islice(claims_of(pod_sets, request.namespace), _CLAIMS):
            await _fetch(cluster, key, storage)
    return left_to_kube_scheduler(pod_sets, request.namespace, storage)


async def _fetch(cluster: Cluster, key: Key, storage: Storage) -> None:
    """A claim, with its class and its volume."""
    try:
        claim = await cluster.get(CLAIMS, key[1], key[0])
        storage.put(claim)
        if name := storage.class_of(claim):
            storage_class = await cluster.get(STORAGE_CLASSES, name)
            storage.put(storage_class)
        if claim.spec.volume_name:
            volume = await cluster.get(VOLUMES, claim.spec.volume_name)
            storage.put(volume)
    except NotFound:
        pass


def _operation(addition: Addition) -> dict[str, Any]:
    """As an operation of a JSON patch."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in addition.path]
    return {"op": "add", "path": "".join(f"/{part}" for part in parts), "value": addition.value}


@dataclass(frozen=True)
class Certificate:
    """PEM texts: the server's certificate and key, and the authority that the API server is told to trust."""

    certificate: bytes
    key: bytes
    authority: bytes

    @staticmethod
    def read(folder: str) -> Certificate:
        """From tls.crt, tls.key and ca.crt. Raises `OSError` naming the missing file."""
        path = Path(folder)
        return Certificate(
            (path / "tls.crt").read_bytes(), (path / "tls.key").read_bytes(), (path / "ca.crt").read_bytes()
        )

    @staticmethod
    def make(hosts: list[str], now: datetime) -> Certificate:
        """Signed by itself, for these host names or addresses; a new one is made at each start."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "serried-webhook")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectAlternativeName([_general_name(h) for h in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(pem, secret, pem)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@asynccontextmanager
async def serve(
    cluster: Cluster, config: Webhook, *, bind: bool, kinds: Sequence[JobKind[Any]] = KINDS
) -> AsyncIterator[int]:
    """Serves the webhook and registers it with the API server; yields the port. Serving ends with the context.

    The registration stays: with `failurePolicy: Ignore` jobs pass while nobody answers.

    Raises `ConfigurationError` when the certificate cannot be used or the address not be listened on.
    """
    local = config.host if config.host not in ("0.0.0.0", "::") else "127.0.0.1"
    service = f"{config.service}.{config.namespace}.svc" if config.service else ""
    hosts = [h for h in (service, local, _host_of(config.url)) if h]
    try:
        certificate = (
            Certificate.read(config.cert_dir) if config.cert_dir else Certificate.make(hosts, datetime.now(UTC))
        )
        context = _ssl(certificate)
    except OSError as error:  # also what ssl raises
        raise ConfigurationError(
            f"webhook.certDir {config.cert_dir}: {error}; it must hold tls.crt, tls.key and ca.crt, as PEM"
        ) from error

    async def handle(kind: JobKind[Any], request: web.Request) -> web.Response:
        try:
            answer = await review(await request.read(), kind, cluster, bind=bind)
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"not an AdmissionReview: {error}")
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    app = web.Application(client_max_size=16 << 20)
    for kind in kinds:
        app.router.add_post(path(kind), partial(handle, kind))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port, ssl_context=context).start()
        except OSError as error:
            raise ConfigurationError(
                f"webhook.host and webhook.port: cannot listen on {config.host}:{config.port}: {error.strerror}"
            ) from error
        port: int = runner.addresses[0][1]
        await _register(cluster, registration(config, certificate.authority, f"https://{local}:{port}", kinds))
        log.info("webhook for jobs on port %d", port)
        yield port
    finally:
        await runner.cleanup()


def registration(config: Webhook, authority: bytes, here: str, kinds: Sequence[JobKind[Any]]) -> dict[str, Any]:
    """The MutatingWebhookConfiguration: jobs that name a queue, at their creation."""
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": NAME},
        "webhooks": [_registered(config, authority, here, kind) for kind in kinds],
    }


def _registered(config: Webhook, authority: bytes, here: str, kind: JobKind[Any]) -> dict[str, Any]:
    resource = kind.resource
    client: dict[str, Any] = {"caBundle": base64.b64encode(authority).decode()}
    if config.service:
        client["service"] = {"name": config.service, "namespace": config.namespace, "path": path(kind)}
    else:
        client["url"] = (config.url.rstrip("/") or here) + path(kind)
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "resources": [resource.plural],
        "operations": ["CREATE"],
    }
    return {
        "name": f"{resource.kind.lower()}.serried.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": config.failure_policy,
        "timeoutSeconds": 5,
        "clientConfig": client,
        "rules": [rule],
        "objectSelector": {"matchExpressions": [{"key": names.QUEUE_NAME, "operator": "Exists"}]},
    }


async def _register(cluster: Cluster, wanted: dict[str, Any]) -> None:
    try:
        await cluster.create(MUTATING_WEBHOOKS, wanted)
    except AlreadyExists:
        await cluster.patch(MUTATING_WEBHOOKS, NAME, patch={"webhooks": wanted["webhooks"]})


def _host_of(url: str) -> str:
    return url.split("//", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0].strip("[]") if url else ""


def _ssl(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:  # ssl reads certificates from files only
        chain, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        chain.write_bytes(certificate.certificate)
        key.touch(0o600)
        key.write_bytes(certificate.key)
        context.load_cert_chain(chain, key)
    return context
