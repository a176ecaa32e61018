"""Every public function, class, method and constant of the package has a user in the package."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "serried"

#: Names without a user in the package → who uses them.
ELSEWHERE = {
    "control/controller.py Controller.idle": "tests wait for a controller at rest",
    "embedded/hollow.py HollowNodes.fail_node": "scenarios lose nodes",
    "embedded/hollow.py HollowNodes.restore_node": "scenarios get them back",
    "embedded/server.py EmbeddedCluster.add_kind": "scenarios install a definition while a controller runs",
    "embedded/server.py EmbeddedCluster.compact": "contract tests let versions expire",
    "embedded/server.py EmbeddedCluster.remove_kind": "scenarios remove a definition",
    "model/world.py World.overdrawn": "the corpora's way of asking whether a placement still holds",
    "schedule/engine.py Engine.validate": "the laws of the model, checked after each event of the properties",
    "schedule/engine.py Engine.withdraw_eviction": "properties and corpora refuse evictions; the writer insists",
    "schedule/view.py EngineView.cohort_usage": "properties compare it with what workloads hold",
    "schedule/view.py EngineView.local_usage": "tests of admission fair sharing",
}


@dataclass(frozen=True)
class Definition:
    #: as "control/controller.py Controller.idle"
    where: str
    name: str
    node: ast.AST


def definitions(path: Path, tree: ast.Module) -> Iterator[Definition]:
    """The public functions, classes and constants of a module, and the methods of its public classes."""
    module = path.relative_to(SOURCE).as_posix()
    for node in tree.body:
        for name in _names(node):
            yield Definition(f"{module} {name}", name, node)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                    yield Definition(f"{module} {node.name}.{member.name}", member.name, member)


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            found = [name]
        case ast.Assign(targets=targets):
            found = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            found = [name]
        case _:
            found = []
    return [name for name in found if not name.startswith("_")]


def uses(tree: ast.AST) -> Counter[str]:
    """How often each name is read. An import alone is no use, nor is a mention in a docstring."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
    return found


def is_command(node: ast.AST) -> bool:
    """Whether a function is registered by its decorator, such as a command of the command line."""
    decorators = getattr(node, "decorator_list", [])
    return any(
        isinstance(d, ast.Call) and isinstance(d.func, ast.Attribute) and d.func.attr in ("command", "callback")
        for d in decorators
    )


def test_every_public_name_has_a_user() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    used: Counter[str] = Counter()
    for tree in trees.values():
        used += uses(tree)
    unused = {
        each.where
        for path, tree in trees.items()
        for each in definitions(path, tree)
        if used[each.name] <= uses(each.node)[each.name] and not is_command(each.node)
    }
    assert sorted(unused) == sorted(ELSEWHERE)
