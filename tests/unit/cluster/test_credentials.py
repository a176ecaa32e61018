"""Kubeconfigs and service accounts, good and bad, and credentials that run out."""

import asyncio
import base64
import datetime
import ipaddress
import json
import os
import ssl
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serried.api.resources import PODS
from serried.cluster import credentials
from serried.cluster import kubeconfig as kubeconfigs
from serried.cluster.credentials import ConfigError, InCluster
from serried.cluster.http import HttpCluster
from serried.cluster.kubeconfig import Kubeconfig
from serried.cluster.protocol import Forbidden, Unavailable
from tests.unit.cluster.server import Answer, ApiServer, kubeconfig, obj, refuse, reply


def only_for(*tokens: str) -> Answer:
    """Lets these bearer tokens in, and nobody else."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") in {f"Bearer {token}" for token in tokens}:
            return await reply(obj("a"))(request)
        return await refuse(401, "Unauthorized", "who are you?")(request)

    return answer


async def ask(cluster: HttpCluster) -> None:
    assert (await cluster.get(PODS, "a", "default")).metadata.name == "a"


# --- Exec plug-ins


@dataclass
class Plugin:
    """A plug-in that gives the token `token-N` at its Nth call, as long as `working` says so."""

    directory: Path
    lifetime: int | None = None

    def install(self) -> dict[str, Any]:
        """The user of a kubeconfig."""
        script = self.directory / "plugin.py"
        script.write_text(
            "import datetime, json, pathlib, sys\n"
            "calls = pathlib.Path(sys.argv[1])\n"
            "calls.write_text(calls.read_text() + 'x' if calls.exists() else 'x')\n"
            "if pathlib.Path(sys.argv[2]).exists():\n"
            "    sys.exit('the key card is missing')\n"
            "status = {'token': f'token-{len(calls.read_text())}'}\n"
            f"lifetime = {self.lifetime}\n"
            "if lifetime is not None:\n"
            "    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=lifetime)\n"
            "    status['expirationTimestamp'] = end.strftime('%Y-%m-%dT%H:%M:%SZ')\n"
            "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
            " 'status': status}))\n"
        )
        return {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": sys.executable,
                "args": [str(script), str(self.directory / "calls"), str(self.directory / "broken")],
                "interactiveMode": "Never",
            }
        }

    def break_(self) -> None:
        (self.directory / "broken").touch()

    @property
    def calls(self) -> int:
        path = self.directory / "calls"
        return len(path.read_text()) if path.exists() else 0


async def test_a_plugin_gives_the_token(server: ApiServer, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    server.answers = [only_for("token-1")]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        await ask(made)
        await ask(made)
    assert plugin.calls == 1


async def test_a_token_that_is_good_no_more_is_renewed_once_for_all(server: ApiServer, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    server.answers = [only_for("token-2")]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        await asyncio.gather(*(ask(made) for _ in range(10)))
    assert plugin.calls == 2


async def test_a_watch_renews_the_token_too(server: ApiServer, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    server.watch_answers = [only_for("token-2")]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        assert [event async for event in made.watch(PODS, resource_version="1")] == []
    assert plugin.calls == 2


async def test_who_is_not_let_in_with_a_new_token_either_is_told_so(server: ApiServer, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    server.answers = [only_for("another")]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        with pytest.raises(Forbidden, match=r"who are you\?"):
            await ask(made)
    assert plugin.calls == 2


async def test_a_token_is_renewed_before_it_ends(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LEAST_SECONDS", 0.0)
    plugin = Plugin(tmp_path, lifetime=-1)
    server.answers = [reply(obj("a"))]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        await ask(made)
        await ask(made)
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer token-2", "Bearer token-3"]


async def test_while_a_token_cannot_be_renewed_the_old_one_is_used(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(credentials, "LEAST_SECONDS", 0.0)
    plugin = Plugin(tmp_path, lifetime=-1)
    server.answers = [only_for("token-1")]
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=plugin.install())) as made:
        plugin.break_()
        await ask(made)
        await ask(made)
        assert "the key card is missing" in caplog.text
        assert plugin.calls == 2  # not again with every request
        server.answers = [only_for("another")]
        with pytest.raises(Forbidden, match="the key card is missing"):
            await ask(made)


async def test_a_plugin_is_told_what_it_asks_for(tmp_path: Path) -> None:
    """Its environment and, if it wants that, the cluster; a relative command is beside the kubeconfig."""
    script = tmp_path / "plugin"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, os\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "cluster = info['spec']['cluster']\n"
        "said = [info['apiVersion'], info['kind'], cluster['server'], cluster['tls-server-name'], os.environ['WHO']]\n"
        "print(json.dumps({'status': {'token': '/'.join(said)}}))\n"
    )
    script.chmod(0o700)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin",
        "args": None,
        "env": [{"name": "WHO", "value": "me"}],
        "provideClusterInfo": True,
    }
    config = kubeconfig(
        tmp_path / "c", "https://api.example", user={"exec": plugin}, cluster={"tls-server-name": "kubernetes"}
    )
    token = "client.authentication.k8s.io/v1/ExecCredential/https://api.example/kubernetes/me"
    assert (await Kubeconfig(config).load()).headers == {"Authorization": f"Bearer {token}"}


async def test_a_plugin_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfigs, "EXEC_SECONDS", 0.3)
    user = _exec(command=sys.executable, args=["-c", "import time; time.sleep(60)"])
    with pytest.raises(ConfigError, match="has not ended"):
        await Kubeconfig(kubeconfig(tmp_path / "c", "http://api.example", user=user)).load()


# --- Files


async def test_a_token_file_is_read_again_as_it_changes(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "TOKEN_FILE_SECONDS", 0.0)
    token = tmp_path / "token"
    token.write_text("old\n")
    server.answers = [only_for("old"), only_for("new")]
    async with await HttpCluster.from_kubeconfig(
        kubeconfig(tmp_path / "c", server.url, user={"tokenFile": "token"})
    ) as made:
        await ask(made)
        token.write_text("new\n")
        await ask(made)


async def test_a_user_may_have_a_password(server: ApiServer, tmp_path: Path) -> None:
    server.answers = [reply(obj("a"))]
    user = {"username": "me", "password": "secret"}
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", server.url, user=user)) as made:
        await ask(made)
    assert server.seen[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()


async def test_kubeconfigs_are_found_and_joined_as_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(
        json.dumps(
            {
                "clusters": [{"name": "far", "cluster": {"server": "http://far.example/prefix/"}}],
                "contexts": [{"name": "one", "context": {"cluster": "far", "user": "me"}}],
                "users": [],
                "current-context": "one",
            }
        )
    )
    two.write_text(
        json.dumps(
            {
                "clusters": [{"name": "near", "cluster": {"server": "http://near.example"}}],
                "contexts": [{"name": "two", "context": {"cluster": "near", "user": "me"}}],
                "users": [{"name": "me", "user": {"token": "mine"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", f"{one}{os.pathsep}{two}")
    access = await Kubeconfig().load()
    assert (access.server, access.headers) == ("http://far.example/prefix", {"Authorization": "Bearer mine"})
    assert (await Kubeconfig(context="two").load()).server == "http://near.example"

    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    two.rename(tmp_path / ".kube" / "config")
    assert (await Kubeconfig(context="two").load()).server == "http://near.example"


async def test_of_two_with_a_name_the_first_counts_and_paths_are_relative_to_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"from-{name}\n")
    one = kubeconfig(tmp_path / "one" / "config", "http://one.example", user={"tokenFile": "token"})
    two = kubeconfig(tmp_path / "two" / "config", "http://two.example", user={"tokenFile": "token"})
    absent = tmp_path / "absent"
    for files, name in (((one, two), "one"), ((absent, two, one), "two")):
        access = await Kubeconfig(os.pathsep.join(map(str, files))).load()
        assert access.server == f"http://{name}.example"
        assert access.headers == {"Authorization": f"Bearer from-{name}"}


async def test_a_null_is_nothing(tmp_path: Path) -> None:
    user = {"token": "mine", "tokenFile": None, "exec": None, "client-key-data": None}
    config = kubeconfig(tmp_path / "c", "http://api.example", user=user, cluster={"certificate-authority": None})
    assert (await Kubeconfig(config).load()).headers == {"Authorization": "Bearer mine"}


def _config(wrong: Mapping[str, Any] | None = None, *, user: Mapping[str, Any] | None = None) -> str:
    """A kubeconfig with something wrong with it."""
    good = {
        "clusters": [{"name": "test", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        "current-context": "test",
    }
    return json.dumps(good | dict(wrong or {}))


def _authority(key: str, value: str) -> dict[str, Any]:
    return {"clusters": [{"name": "test", "cluster": {"server": "https://127.0.0.1:1", key: value}}]}


def _exec(**more: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **more}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("", "it is empty, or no kubeconfig"),
        ("just words", "it is empty, or no kubeconfig"),
        ("a: [", "not YAML in line 1: while parsing"),
        ("users:\n- name: me\n  user: {token: secret, token: secret, }secret", "not YAML in line 3"),
        (_config({"current-context": ""}), "--context"),
        (_config(_authority("server", "api.example:6443")), "not a URL"),
        (_config(_authority("proxy-url", "socks5://proxy.example")), "proxy.example"),
        (_config(_authority("certificate-authority-data", "secret")), "base64"),
        (_config(user={"token": ["secret"]}), r"token"),
        (_config(user={"token": "line\nbreak-secret"}), "characters"),
        (_config(user={"tokenFile": "absent.token"}), "absent.token"),
        (_config(user={"auth-provider": {"name": "gcp", "config": {"access-token": "secret"}}}), "gcp"),
        (_config(user=_exec(command="no-such-plugin", installHint="Get it from the shop.")), "Get it from the shop"),
        (_config({"current-context": "absent"}), "absent"),
        (_config({"clusters": []}), "test"),
        (_config({"contexts": None}), "no context 'test'; there are: none"),
        (_config(_authority("certificate-authority", "absent.crt")), "absent.crt"),
        (_config(_authority("certificate-authority-data", "bm90aGluZw==")), "X509|SSL|certificate"),
        (_config({"users": [{"name": "me", "token": "secret"}]}), "missing required field `user`"),
        (_config(user=_exec(command="no-such-plugin")), "no-such-plugin"),
        (_config(user=_exec(command=sys.executable, args=["-c", "print(1)"])), "no ExecCredential"),
        (_config(user=_exec(command=sys.executable, args=["-c", "exit('no card')"])), "no card"),
    ],
)
async def test_a_broken_kubeconfig_is_named_with_what_is_wrong_and_what_to_do(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"^kubeconfig {path}: .*({says}).*; .*kubeconfig") as caught:
        await HttpCluster.from_kubeconfig(path)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_in_cluster_the_token_is_read_again(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    token = tmp_path / "token"
    token.write_text("old\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    source = InCluster(str(token), str(authority.certificate))
    access = await source.load()
    assert (access.server, access.headers) == ("https://[fd00::1]:443", {"Authorization": "Bearer old"})
    assert access.good_until is not None
    token.write_text("new")
    again = await source.load()
    assert again.headers == {"Authorization": "Bearer new"}
    assert again.ssl is access.ssl  # the same pool of connections


async def test_outside_a_pod_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"in-cluster .*--kubeconfig"):
        await HttpCluster.in_cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="token"):
        await InCluster(str(tmp_path / "absent"), str(tmp_path / "absent")).load()


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, "http://proxy.example:3128"),
        ({"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "api.example"}, None),
        ({"HTTP_PROXY": "http://proxy.example:3128"}, None),
    ],
)
async def test_the_environment_may_ask_for_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxy: str | None
) -> None:
    path = tmp_path / "config"
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (await Kubeconfig(kubeconfig(path, "https://api.example")).load()).proxy == proxy
    fixed = {"proxy-url": "http://fixed.example:1"}
    assert (await Kubeconfig(kubeconfig(path, "https://api.example", cluster=fixed)).load()).proxy == fixed["proxy-url"]


# --- TLS


class Authority:
    """Signs certificates for one test."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate, _ = self._sign(name, self.key, self.name, authority=True)

    def sign(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a server on 127.0.0.1, or of a client."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(name, ec.generate_private_key(ec.SECP256R1()), subject, authority=False)

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, authority: bool
    ) -> tuple[Path, Path]:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = (
            x509.CertificateBuilder(
                self.name, subject, key.public_key(), x509.random_serial_number(), now - day, now + day
            )
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(addresses, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        certificate, secret = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return certificate, secret


async def _serve(authority: Authority) -> TestServer:
    """A server that lets in who has a certificate, and answers with the name in it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(*authority.sign("server"))
    context.verify_mode = ssl.CERT_REQUIRED

    async def who(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"gitVersion": dict(part[0] for part in peer["subject"])["commonName"]})

    app = web.Application()
    app.router.add_get("/version", who)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    return server


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize("inline", [True, False])
async def test_a_client_certificate_lets_in_and_inline_keys_stay_on_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    """An authority without the extensions that newer Pythons insist on is good enough, as it is for kubectl."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    authority = Authority(tmp_path)
    server = await _serve(authority)
    certificate, key = authority.sign("me")
    if inline:
        user = {"client-certificate-data": _data(certificate), "client-key-data": _data(key)}
        cluster = {"certificate-authority-data": _data(authority.certificate)}
    else:
        user = {"client-certificate": certificate.name, "client-key": str(key)}
        cluster = {"certificate-authority": authority.certificate.name}
    config = kubeconfig(tmp_path / "config", str(server.make_url("")), user=user, cluster=cluster)
    async with await HttpCluster.from_kubeconfig(config) as made:
        assert await made.version() == "me"
    assert list((tmp_path / "temporary").iterdir()) == []
    assert certificate.exists()
    await server.close()


async def test_a_server_that_cannot_be_verified_is_not_spoken_to(tmp_path: Path) -> None:
    server = await _serve(Authority(tmp_path))
    (tmp_path / "others").mkdir()
    other = Authority(tmp_path / "others")
    url = str(server.make_url(""))
    certificate, key = other.sign("me")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    config = kubeconfig(tmp_path / "c", url, user=user, cluster={"certificate-authority": str(other.certificate)})
    async with await HttpCluster.from_kubeconfig(config) as made:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await made.version()
    await server.close()


async def test_verification_can_be_switched_off_and_another_name_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = await _serve(authority)
    certificate, key = authority.sign("me")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    url = str(server.make_url(""))
    config = kubeconfig(tmp_path / "c", url, user=user, cluster={"insecure-skip-tls-verify": True})
    async with await HttpCluster.from_kubeconfig(config) as made:
        assert await made.version() == "me"
    named = {"certificate-authority": str(authority.certificate), "tls-server-name": "kubernetes"}
    async with await HttpCluster.from_kubeconfig(kubeconfig(tmp_path / "c", url, user=user, cluster=named)) as made:
        with pytest.raises(Unavailable, match="kubernetes"):
            await made.version()
    await server.close()


async def test_a_proxy_passes_tls_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = await _serve(authority)
    certificate, key = authority.sign("me")
    asked: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0])
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    async with proxy:
        config = kubeconfig(
            tmp_path / "config",
            "https://api.example:6443",
            user={"client-certificate": str(certificate), "client-key": str(key)},
            cluster={
                "certificate-authority": str(authority.certificate),
                "tls-server-name": "127.0.0.1",
                "proxy-url": f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
            },
        )
        async with await HttpCluster.from_kubeconfig(config) as made:
            assert await made.version() == "me"
            assert await made.version() == "me"
    assert asked == [b"CONNECT api.example:6443 HTTP/1.1"]
    await server.close()
