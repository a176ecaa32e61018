"""The store against a plain dict: whatever is done, lists, indexes and watches from any version tell the same."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serried.api.core import Pod
from serried.api.meta import Object
from serried.api.resources import PODS
from serried.cluster.protocol import Malformed
from serried.embedded.store import Change, Store, Stored

NAMESPACES = st.sampled_from(["n1", "n2"])
NAMES = st.sampled_from("abc")
NODES = st.sampled_from(["", "x", "y"])


class AgainstADict(RuleBasedStateMachine):
    """Pods come, move between nodes, and go, in a store that remembers few changes."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(history=4, indexed_fields={PODS: "spec.nodeName"})
        self.table = self.store.table(PODS)
        self.model: dict[tuple[str, str], tuple[str, str]] = {}
        #: what a list at each version would have said
        self.lists: dict[int, dict[tuple[str, str], str]] = {0: {}}
        self.uids = 0

    @rule(namespace=NAMESPACES, name=NAMES, node=NODES, owner=st.integers(0, 5))
    def put(self, namespace: str, name: str, node: str, owner: int) -> None:
        old = self.table.get((namespace, name))
        if old is None:
            self.uids += 1
        uid = old.uid if old else str(self.uids)
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if owner:
            metadata["ownerReferences"] = [{"uid": str(owner)}]
        self.store.put(PODS, {"metadata": metadata, "spec": {"nodeName": node}}, old)
        self.model[namespace, name] = (node, str(owner))
        self.record()

    @rule(namespace=NAMESPACES, name=NAMES)
    def remove(self, namespace: str, name: str) -> None:
        old = self.table.get((namespace, name))
        assert (old is None) == ((namespace, name) not in self.model)
        if old is not None:
            last = self.store.remove(old)
            assert last.version == self.store.version
            assert last.data["spec"] == old.data["spec"]
            del self.model[namespace, name]
            self.record()

    @rule()
    def forget(self) -> None:
        self.table.log.forget()

    def record(self) -> None:
        self.lists[self.store.version] = {key: node for key, (node, _) in self.model.items()}

    @invariant()
    def lists_and_indexes_agree(self) -> None:
        assert {each.key: each.data["spec"]["nodeName"] for each in self.table.all()} == self.lists[self.store.version]
        for namespace in ("n1", "n2", "n3"):
            assert {each.key for each in self.table.all(namespace)} == {
                key for key in self.model if key[0] == namespace
            }
        for node in ("x", "y", "z"):
            assert {each.key for each in self.table.indexed(node)} == {
                key for key, (found, _) in self.model.items() if found == node
            }
        for owner in range(1, 6):
            assert {each.key for each in self.store.dependents(str(owner))} == {
                key for key, (_, found) in self.model.items() if found == str(owner)
            }
        for stored in self.table.all():
            assert self.store.by_uid(stored.uid) is stored
            assert stored.metadata["resourceVersion"] == str(stored.version)

    @invariant()
    def a_watch_from_any_version_leads_to_the_list(self) -> None:
        log = self.table.log
        assert self.store.version - log.forgotten <= 9
        for version in range(log.forgotten, self.store.version + 1):
            seen = dict(self.lists[version])
            for number in range(log.after(version), log.end):
                change = log.get(number)
                assert change is not None
                assert (change.new.key in seen) == (change.type != "ADDED") == (change.old is not None)
                if change.type == "DELETED":
                    del seen[change.new.key]
                else:
                    seen[change.new.key] = change.new.data["spec"]["nodeName"]
                assert seen == self.lists[change.new.version]
            assert seen == self.lists[self.store.version]


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def stored(**spec: Any) -> Stored:
    return Stored(PODS, {"metadata": {"name": "a", "namespace": "n", "uid": "1"}, "spec": spec}, 1)


def test_all_readers_share_one_struct() -> None:
    one = stored(nodeName="x", unknown=1)
    assert isinstance(one.decoded(Pod), Pod)
    assert one.decoded(Pod) is one.decoded(Pod)


def test_a_kind_can_be_read_as_another_struct() -> None:
    class Wide(Object):
        spec: dict[str, Any] = {}

    found = stored(nodeName="x", unknown=1).decoded(Wide)
    assert isinstance(found, Wide)
    assert found.spec == {"nodeName": "x", "unknown": 1}


def test_what_does_not_decode_is_malformed_but_has_its_name() -> None:
    found = stored(nodeName=5).decoded(Pod)
    assert isinstance(found, Malformed)
    assert found.metadata.name == "a"
    assert "$.spec.nodeName" in found.error


def test_a_change_that_was_forgotten_is_gone() -> None:
    store = Store(history=2, indexed_fields={})
    for number in range(6):
        store.put(PODS, {"metadata": {"name": str(number), "uid": str(number)}}, None)
    log = store.table(PODS).log
    assert log.get(0) is None
    assert [change.new.key[1] for change in map(_change(log.get), range(log.after(log.forgotten), log.end))] == [
        str(number) for number in range(log.forgotten, 6)
    ]


def _change(get: Callable[[int], Change | None]) -> Callable[[int], Change]:
    def change(number: int) -> Change:
        found = get(number)
        assert found is not None
        return found

    return change


def test_versions_of_one_object_share_what_did_not_change() -> None:
    store = Store(history=10, indexed_fields={})
    first = store.put(PODS, {"metadata": {"name": "a", "uid": "1"}, "spec": {"nodeName": "x"}}, None)
    second = store.put(PODS, {**first.data, "metadata": dict(first.metadata), "status": {}}, first)
    assert second.data["spec"] is first.data["spec"]
    assert (first.metadata["resourceVersion"], second.metadata["resourceVersion"]) == ("1", "2")
