"""Check that no modules and no subpackages import each other in a cycle, imports inside functions included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import grimp
import pytest

Arrows = Mapping[str, set[str]]


@pytest.fixture(scope="module")
def modules() -> Arrows:
    graph = grimp.build_graph("tvmflow", "tasks", "flows", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def children(modules: Arrows, package: str) -> Arrows:
    """Return which children of a package import which others, by the modules in them."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, imported in modules.items():
        inside = {name.removeprefix(f"{package}.").split(".")[0] for name in imported if name.startswith(f"{package}.")}
        if module.startswith(f"{package}."):
            child = module.removeprefix(f"{package}.").split(".")[0]
            found[child] |= inside - {child}
    return found


def in_circles(arrows: Arrows) -> set[str]:
    """Return the nodes from which arrows lead back to themselves."""

    def reached(start: str) -> Iterator[str]:
        seen, todo = set[str](), [*arrows.get(start, ())]
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo.extend(arrows.get(node, ()))
                yield node

    return {node for node in arrows if node in reached(node)}


def test_no_modules_import_each_other_in_a_circle(modules: Arrows) -> None:
    assert in_circles(modules) == set()


def test_no_folders_of_a_package_import_each_other_in_a_circle(modules: Arrows) -> None:
    packages = {module.rpartition(".")[0] for module in modules if module.startswith("tvmflow.")}
    assert len(packages) > 40
    assert {package: found for package in sorted(packages) if (found := in_circles(children(modules, package)))} == {}


def test_circles_are_found() -> None:
    arrows = {"p.a.x": {"p.b.y"}, "p.b.y": set(), "p.b.z": {"p.a.x"}}
    assert in_circles(arrows) == set() and in_circles(children(arrows, "p")) == {"a", "b"}
    assert in_circles({**arrows, "p.b.y": {"p.b.z"}}) == {"p.a.x", "p.b.y", "p.b.z"}
