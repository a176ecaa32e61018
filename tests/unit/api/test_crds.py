import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from serried.api import resources
from serried.api.crds import REVISION_ANNOTATION, crds, files
from serried.api.crds.schema import QUANTITY_PATTERN
from serried.api.quantity import QuantityError, parse

CUSTOM = [r for r in resources.ALL if r.group.endswith(".x-k8s.io")]
DEPLOYED = Path(__file__).parents[3] / "deploy" / "crds"


def test_the_deployed_files_are_what_the_package_prints() -> None:
    """If this fails, write them again: `python -m serried.api.crds deploy/crds`."""
    assert {path.name: path.read_text() for path in DEPLOYED.iterdir()} == files()


def test_there_is_a_definition_for_every_custom_resource() -> None:
    defined = {
        (crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"], crd["spec"]["scope"])
        for crd in crds()
        for version in crd["spec"]["versions"]
    }
    assert len(CUSTOM) == 9
    assert defined == {(r.group, r.version, r.kind, "Namespaced" if r.namespaced else "Cluster") for r in CUSTOM}


def test_every_file_is_one_definition_with_a_revision() -> None:
    for content in files().values():
        definition = yaml.safe_load(content)
        assert definition["kind"] == "CustomResourceDefinition"
        assert int(definition["metadata"]["annotations"][REVISION_ANNOTATION]) >= 1


def compare(info: inspect.Type, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Where a wire type and a schema disagree, so that the API server would drop or refuse what is written."""
    if isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from compare(option, schema, path)
    elif isinstance(info, inspect.ListType):
        yield from compare(info.item_type, schema.get("items", {}), f"{path}[]")
    elif isinstance(info, inspect.StructType) and "properties" in schema:
        for field in info.fields:
            name = field.encode_name
            if name not in schema["properties"]:
                yield f"{path}.{name} is not in the schema"
                continue
            omitted = not field.required and info.cls.__struct_config__.omit_defaults
            if omitted and name in schema.get("required", ()) and ".status" in path:
                yield f"{path}.{name} is required, but left out when it has its default value"
            if name != "metadata":
                yield from compare(field.type, schema["properties"][name], f"{path}.{name}")


@pytest.mark.parametrize("resource", CUSTOM, ids=lambda resource: resource.kind)
def test_wire_types_agree_with_the_schema(resource: resources.Resource[Any]) -> None:
    """The API server drops fields that a schema does not have without a word.

    And it refuses a status, which Serried writes whole, for what a schema requires and the wire type leaves out.
    """
    schema = next(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for crd in crds()
        if crd["spec"]["names"]["kind"] == resource.kind
    )
    found = list(compare(inspect.type_info(resource.type), schema, resource.kind))
    if resource is resources.LOCAL_QUEUES:
        # It shares the wire type of usage with ClusterQueue, and borrows nothing itself.
        found = [problem for problem in found if not problem.endswith(".borrowed is not in the schema")]
    assert found == []


def left_out(info: inspect.Type, schema: dict[str, Any], path: str) -> Iterator[str]:
    """What a schema has and a wire type has not."""
    if isinstance(info, inspect.UnionType):
        info = next(option for option in info.types if not isinstance(option, inspect.NoneType))
    if isinstance(info, inspect.ListType):
        yield from left_out(info.item_type, schema["items"], f"{path}[]")
    elif isinstance(info, inspect.StructType) and "properties" in schema:
        fields = {field.encode_name: field.type for field in info.fields}
        for name, below in schema["properties"].items():
            if name not in fields:
                yield f"{path}.{name}"
            else:
                yield from left_out(fields[name], below, f"{path}.{name}")


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue", "Cohort"])
def test_the_status_of_queues_is_written_whole(kind: str) -> None:
    (crd,) = [crd for crd in crds() if crd["spec"]["names"]["kind"] == kind]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    (resource,) = [resource for resource in CUSTOM if resource.kind == kind]
    (status,) = [f.type for f in inspect.type_info(resource.type).fields if f.name == "status"]  # type: ignore[attr-defined]
    assert list(left_out(status, schema, "status")) == []


@pytest.mark.parametrize("text", ["0", "8", "1.", ".5", "+1", "1.5Gi", "100m", "1e3", "1E3", "1e-3", "2E"])
def test_the_schema_accepts_quantities(text: str) -> None:
    assert re.search(QUANTITY_PATTERN, text)


@pytest.mark.parametrize("text", ["", ".", "-1", "8GB", "1 Gi", "0x8", "many"])
def test_the_schema_refuses_what_is_no_quota(text: str) -> None:
    assert not re.search(QUANTITY_PATTERN, text)


@given(st.text(".+-0123456789eEKMGTPikmnu ", max_size=8))
def test_what_the_schema_accepts_is_what_can_be_read_and_is_not_negative(text: str) -> None:
    try:
        value = parse(text)
    except QuantityError:
        value = None
    accepted = re.search(QUANTITY_PATTERN, text) is not None
    assert accepted == (value is not None and not text.startswith("-"))
