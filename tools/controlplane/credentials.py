"""Keys, certificates, tokens and kubeconfigs of one control plane, all made anew for it."""

import base64
import csv
import datetime
import ipaddress
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class User:
    """Somebody the API server knows by a bearer token. What they may do is RBAC's affair."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


ADMIN = "serried-admin"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def write_certificates(directory: Path) -> None:
    """Write `ca.crt`, `server.crt` with `server.key` (for 127.0.0.1 and localhost), and `service-account.key`.

    All keys are elliptic (P-256): made in a millisecond, where RSA takes up to a second. Valid for a week.
    The authority's own key is not kept.
    """
    # Imported here so that `python -m tools.controlplane path` needs the standard library alone.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, server, service_account = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "serried test control plane")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=7)
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            encipher_only=False,
            decipher_only=False,
        )

    ca = (
        x509.CertificateBuilder(issuer, issuer, authority.public_key(), x509.random_serial_number(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(key_id, critical=False)
        .sign(authority, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    leaf = (
        x509.CertificateBuilder(issuer, subject, server.public_key(), x509.random_serial_number(), start, end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
        .sign(authority, hashes.SHA256())
    )

    def pem(key: ec.EllipticCurvePrivateKey) -> str:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        ).decode()

    (directory / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (directory / "server.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    write_private(directory / "server.key", pem(server))
    write_private(directory / "service-account.key", pem(service_account))


def write_tokens(path: Path, users: Iterable[User]) -> None:
    """Write the API server's token file: token, user, uid, groups (one quoted field)."""
    write_private(path, "")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([user.token, user.name, user.name, ",".join(user.groups)] for user in users)


def write_kubeconfig(path: Path, url: str, ca: Path, user: User) -> None:
    """Write a kubeconfig (as JSON, which is YAML) that stands alone: authority and token are in it."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user.name}}],
        "current-context": "test",
    }
    write_private(path, json.dumps(config, indent=1))
