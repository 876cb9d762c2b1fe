"""Who leads to a function: the package's source read as a graph of names, without running it.

A function leads to whatever it names: what it calls, hands on or decorates with, and to all methods of a class that it makes an
object of. What is called by way of a table, a hook or an object that was handed in is not seen; where that begins, a name that
nobody leads to is left, and so it is found as a beginning.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass
class _Module:
    name: str
    tree: ast.Module
    # What a name of the module stands for: a function, a class or a module of the package.
    known: dict[str, str] = field(default_factory=dict)


def package() -> Graph:
    """The graph of the whole package."""
    modules = {name: _Module(name, tree) for path, tree in sources().items() if (name := _name_of(path))}
    for module in modules.values():
        module.known = dict(_imported(module)) | {
            node.name: f"{module.name}.{node.name}"
            for node in module.tree.body
            if isinstance(node, _Function | ast.ClassDef)
        }
    bodies = {name: body for module in modules.values() for name, body in _functions(module)}
    methods: dict[str, list[str]] = {}
    for name, (_, owner, _) in bodies.items():
        methods.setdefault(owner, []).append(name)
    graph = Graph()
    for name, (module, owner, body) in bodies.items():
        graph.leads_to[name] = set(_named(module, owner, body, modules, bodies, methods))
        if any("router." in ast.unparse(decorator) for decorator in body.decorator_list):
            graph.routed.add(name)
    return graph


_Body = tuple[_Module, str, _Function]


def _name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(module: _Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ricordo"):
            home = (node.module or "").removeprefix("ricordo").removeprefix(".")
            for alias in node.names:
                yield alias.asname or alias.name, f"{home}.{alias.name}".removeprefix(".")


def _functions(module: _Module) -> Iterator[tuple[str, _Body]]:
    for node in module.tree.body:
        if isinstance(node, _Function):
            yield f"{module.name}.{node.name}", (module, "", node)
        elif isinstance(node, ast.ClassDef):
            owner = f"{module.name}.{node.name}"
            for inner in node.body:
                if isinstance(inner, _Function):
                    yield f"{owner}.{inner.name}", (module, owner, inner)


def _named(
    module: _Module,
    owner: str,
    body: _Function,
    modules: Mapping[str, _Module],
    bodies: Mapping[str, _Body],
    methods: Mapping[str, list[str]],
) -> Iterator[str]:
    """The functions that a function's body names; to make an object leads to what runs then."""
    nodes = list(ast.walk(body))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in own and (target := module.known.get(node.id)):
            yield from _reached(_whole(target, modules), bodies, methods)
        elif isinstance(node, ast.Attribute):
            target = _dotted(module, node, modules)
            if target:
                yield from _reached(target, bodies, methods)
            elif isinstance(node.value, ast.Name) and node.value.id == "self" and f"{owner}.{node.attr}" in bodies:
                yield f"{owner}.{node.attr}"


def _whole(target: str, modules: Mapping[str, _Module]) -> str:
    """The function or class itself, where the name is one that a package only passes on."""
    home, _, name = target.rpartition(".")
    if home in modules and (passed := modules[home].known.get(name)) and passed != target:
        return _whole(passed, modules)
    return target


def _dotted(module: _Module, node: ast.Attribute, modules: Mapping[str, _Module]) -> str | None:
    if isinstance(node.value, ast.Name) and (target := module.known.get(node.value.id)):
        return _whole(f"{_whole(target, modules)}.{node.attr}", modules)
    return None


def _reached(target: str, bodies: Mapping[str, _Body], methods: Mapping[str, list[str]]) -> Iterable[str]:
    return [target] if target in bodies else methods.get(target, [])
