"""Who leads to a function: the package's source read as a graph of names, without running it.

A function leads to whatever it names: what it calls, hands on or decorates with, and to all methods of a class that it makes an
object of. What is called by way of a table, a hook or an object that was handed in is not seen; where that begins, a name that
nobody leads to is left, and so it is found as a beginning.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import ricordo

_ROOT = Path(ricordo.__file__).parent
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_OFFERED = "features.typed_memory."


@dataclass
class Graph:
    """Functions by their names, `storage.blocks.write` or `app.open_in_thread`."""

    leads_to: dict[str, set[str]] = field(default_factory=dict)
    # Those that a route calls.
    routed: set[str] = field(default_factory=set)

    def without(self, name: str) -> "Graph":
        """The graph as if this function led nowhere."""
        return Graph({one: set() if one == name else named for one, named in self.leads_to.items()}, self.routed)

    def leading_to(self, doors: Iterable[str]) -> set[str]:
        """The functions that lead to one of the doors, by way of others or not, without the doors themselves."""
        doors = set(doors)
        backwards: dict[str, set[str]] = {}
        for name, named in self.leads_to.items():
            for other in named:
                backwards.setdefault(other, set()).add(name)
        found: set[str] = set()
        waiting = list(doors)
        while waiting:
            fresh = backwards.get(waiting.pop(), set()) - found - doors
            found |= fresh
            waiting += fresh
        return found

    def begins(self, doors: Iterable[str]) -> set[str]:
        """Those among them that a route calls, that a program of one's own may call, or that nothing else in the package names."""
        leading = self.leading_to(doors)
        named = {other for name in leading for other in self.leads_to[name] if other != name}
        offered = {name for name in leading if name.startswith(_OFFERED) and "._" not in name}
        return (leading - named) | (leading & self.routed) | offered


@lru_cache(maxsize=1)
def sources() -> dict[str, ast.Module]:
    paths = sorted(_ROOT.rglob("*.py"))
    return {path.relative_to(_ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


class _Package:
    """What each module's names stand for (functions, classes and modules of the package), and the functions' bodies."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}
        self.bodies: dict[str, tuple[str, str, _Function]] = {}
        self.methods: dict[str, list[str]] = {}
        for path, tree in sources().items():
            if module := path.removesuffix(".py").removesuffix("/__init__").replace("/", "."):
                self._read(module, tree)

    def _read(self, module: str, tree: ast.Module) -> None:
        known = self.known[module] = dict(_imported(tree))
        for node in tree.body:
            if not isinstance(node, _Function | ast.ClassDef):
                continue
            name = known[node.name] = f"{module}.{node.name}"
            if isinstance(node, _Function):
                self.bodies[name] = (module, "", node)
                continue
            for inner in node.body:
                if isinstance(inner, _Function):
                    self.bodies[f"{name}.{inner.name}"] = (module, name, inner)
                    self.methods.setdefault(name, []).append(f"{name}.{inner.name}")

    def named(self, name: str) -> Iterator[str]:
        """The functions that a function's body names; to make an object leads to what runs then."""
        module, owner, body = self.bodies[name]
        nodes, known = list(ast.walk(body)), self.known[module]
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id not in own and (target := known.get(node.id)):
                yield from self._reached(self._whole(target))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if target := known.get(node.value.id):
                    yield from self._reached(self._whole(f"{self._whole(target)}.{node.attr}"))
                elif node.value.id == "self" and f"{owner}.{node.attr}" in self.bodies:
                    yield f"{owner}.{node.attr}"

    def _whole(self, target: str) -> str:
        """The function or class itself, where the name is one that a package only passes on."""
        home, _, name = target.rpartition(".")
        passed = self.known.get(home, {}).get(name, target)
        return target if passed == target else self._whole(passed)

    def _reached(self, target: str) -> Iterable[str]:
        return [target] if target in self.bodies else self.methods.get(target, [])


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ricordo"):
            home = (node.module or "").removeprefix("ricordo").removeprefix(".")
            for alias in node.names:
                yield alias.asname or alias.name, f"{home}.{alias.name}".removeprefix(".")


def package() -> Graph:
    """The graph of the whole package."""
    found = _Package()
    routed = {
        name
        for name, (_, _, body) in found.bodies.items()
        if any("router." in ast.unparse(decorator) for decorator in body.decorator_list)
    }
    return Graph({name: set(found.named(name)) for name in found.bodies}, routed)
