"""The webhook's answers, and its registration."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from serried.api import names
from serried.api.resources import CLAIMS, MUTATING_WEBHOOKS, STORAGE_CLASSES, Resource
from serried.cluster.protocol import AlreadyExists
from serried.control import webhook
from serried.control.config import ConfigurationError, Webhook
from serried.embedded.server import EmbeddedCluster
from serried.jobs import KINDS
from serried.jobs.job import BatchJob

KIND = BatchJob()


def admission_review(operation: str = "CREATE", **spec: Any) -> bytes:
    job = {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": {"template": {"spec": spec}}}
    request = {"uid": "u", "operation": operation, "namespace": "default", "object": job}
    return msgspec.json.encode({"request": request})


async def review(body: bytes, cluster: EmbeddedCluster | None = None, *, bind: bool = True) -> dict[str, Any]:
    return await webhook.review(body, KIND, cluster or EmbeddedCluster(), bind=bind)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None},
        {"metadata": {"labels": None}},
        {"metadata": {"labels": []}},
        {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}},
        {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": None},
        {"metadata": {"labels": {names.QUEUE_NAME: "lq"}}, "spec": {"template": []}},
    ],
    ids=str,
)
async def test_an_object_that_is_no_job_is_left_to_the_api_server(odd: dict[str, Any]) -> None:
    body = msgspec.json.encode({"request": {"uid": "u", "operation": "CREATE", "object": odd}})
    assert "patch" not in (await review(body))["response"]


def operations(answer: dict[str, Any]) -> list[dict[str, Any]]:
    patch: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(answer["response"]["patch"]))
    return patch


async def test_a_queued_job_is_suspended_and_claimed() -> None:
    answer = await review(admission_review())
    assert (answer["response"]["uid"], answer["response"]["allowed"]) == ("u", True)
    assert [o["path"] for o in operations(answer)] == ["/spec/suspend", "/spec/template/spec/schedulerName"]
    assert [o["path"] for o in operations(await review(admission_review(), bind=False))] == ["/spec/suspend"]


async def test_later_changes_pass_untouched() -> None:
    assert "patch" not in (await review(admission_review("UPDATE")))["response"]


@pytest.mark.parametrize(
    ("claims", "left"),
    [
        ([], False),
        ([{"storageClassName": "late"}], True),
        ([{"storageClassName": "late", "volumeName": "pv"}], False),
        ([{"storageClassName": "gone"}], False),
    ],
)
async def test_pods_whose_claims_are_bound_where_they_go_are_left_to_kube_scheduler(
    claims: list[dict[str, Any]], left: bool
) -> None:
    cluster = EmbeddedCluster()
    late = {"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    await cluster.create(STORAGE_CLASSES, late)
    for spec in claims:
        annotations = {"pv.kubernetes.io/bind-completed": "yes"} if "volumeName" in spec else {}
        await cluster.create(
            CLAIMS, {"metadata": {"name": "data", "annotations": annotations}, "spec": spec}, "default"
        )
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    answer = await review(admission_review(volumes=volumes), cluster)
    expected = ["/spec/suspend"] if left else ["/spec/suspend", "/spec/template/spec/schedulerName"]
    assert [o["path"] for o in operations(answer)] == expected
    text = 'persistentvolumeclaim "data" is bound or provisioned where its first pod goes'
    assert answer["response"].get("warnings", []) == ([f"the pods are left to kube-scheduler: {text}"] if left else [])


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"request": {"uid": 3}}'])
async def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        await review(body)


def test_the_registration_leads_to_the_service_or_the_url() -> None:
    def client(config: Webhook) -> dict[str, Any]:
        found: dict[str, Any] = webhook.registration(config, b"ca", "https://127.0.0.1:1", KINDS)["webhooks"][0][
            "clientConfig"
        ]
        return found

    assert client(Webhook())["url"] == "https://127.0.0.1:1/mutate-batch-v1-job"
    assert client(Webhook(url="https://hook.example/"))["url"] == "https://hook.example/mutate-batch-v1-job"
    service = client(Webhook(service="serried", namespace="ns"))
    assert service["service"] == {"name": "serried", "namespace": "ns", "path": "/mutate-batch-v1-job"}
    assert "url" not in service


class Registry(EmbeddedCluster):
    """Keeps the registration of the webhook, as the real server does."""

    registered: dict[str, Any] | None = None

    async def create(self, resource: Resource[Any], obj: Any, namespace: str = "") -> Any:
        assert resource is MUTATING_WEBHOOKS
        if self.registered is not None:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        self.registered = obj

    async def patch(self, resource: Resource[Any], name: str, namespace: str = "", **change: Any) -> Any:
        assert (resource, name) == (MUTATING_WEBHOOKS, "serried")
        self.registered = {**(self.registered or {}), **change["patch"]}


async def test_it_serves_over_tls_with_the_authority_it_registers() -> None:
    cluster = Registry()
    for _ in range(2):  # the second start finds the registration of the first, with another port and authority
        async with webhook.serve(cluster, Webhook(host="127.0.0.1", port=0), bind=True) as port:
            assert cluster.registered is not None
            client = cluster.registered["webhooks"][0]["clientConfig"]
            assert client["url"] == f"https://127.0.0.1:{port}{webhook.path(KIND)}"
            trust = ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
            async with aiohttp.ClientSession() as http:
                async with http.post(client["url"], data=admission_review(), ssl=trust) as answer:
                    assert answer.status == 200
                    assert len(operations(msgspec.json.decode(await answer.read()))) == 2
                async with http.post(client["url"], data=b"nonsense", ssl=trust) as answer:
                    assert answer.status == 400


@pytest.mark.parametrize("files", [(), ("tls.crt", "tls.key", "ca.crt")])
async def test_certificates_that_are_missing_or_none_are_named(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).write_text("no certificate")
    config = Webhook(enabled=True, host="127.0.0.1", port=0, cert_dir=str(tmp_path))
    with pytest.raises(ConfigurationError, match="certDir"):
        async with webhook.serve(EmbeddedCluster(), config, bind=True):
            pass


async def test_an_address_that_cannot_be_listened_on_is_named() -> None:
    config = Webhook(enabled=True, host="203.0.113.7", port=9443)
    with pytest.raises(ConfigurationError, match=r"203\.0\.113\.7:9443"):
        async with webhook.serve(EmbeddedCluster(), config, bind=True):
            pass
