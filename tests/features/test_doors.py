"""Who may write memory, found in the source: the functions that lead to the door, and the modules that write its tables.

A function leads to whatever it names: what it calls, hands on or decorates with, and to all methods of a class that it makes an
object of. What is called by way of a table, a hook or an object that was handed in is not seen; where that begins, a name that
nobody leads to is left, and so it is found as a beginning.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ricordo
from tests.features import test_write_paths
from tests.features.test_write_paths import OWNERS_WAYS, PROPOSALS_WAYS

# Who may write the tables of core memory, and no other module: the door, what stands behind it, and erasure, which leaves less.
DOOR = {"storage/blocks.py", "storage/versions.py", "storage/proposals.py"}
BESIDE = {
    "features/git/queries.py",  # what an owner pushed by git keeps its ids, so it is stored as it came, its policies asked
    "features/erasure/queries.py",
    "features/erasure/service.py",
}
_TABLES = "(?:blocks|commits|blobs|chains|proposals)"
# The functions that write memory, and nothing else does.
DOORS = {
    *(f"storage.blocks.{name}" for name in ("insert_all", "write", "update", "remove")),
    "features.git.adoption.adopt",
    "storage.proposals.insert_one",
}
# Where a turn begins. All that its tools write is saved with the step, as the tests of each tool show.
SAVING = "agents.step_save.save_step"
TURNS = {
    *("api.messages.send", "api.messages.send_async", "api.messages.stream", "api.conversations.send"),
    *("api.conversations.compact", "api.conversations.compact_own"),
    *("features.schedules.jobs.send", "features.batches.jobs.answer_batch"),
    *("features.openai_api.routes.create_chat_completion", "features.openai_api.responses.create_response"),
    "features.tutor_chat.routes.stream",
    "features.tasks.jobs.carry_out",
    # Readers of a past turn, which begins one anew for the request that it was asked for; these two have none.
    *("api.stored_streams.resume", "api.stored_streams.resume_conversation", "api.callbacks.call_back"),
}
# `ricordo doctor models` runs turns in a temporary database, which is deleted at its end. Templates only read a file as an import
# would, and store what is no memory of it.
TRIALS = {"cli.run_doctor", "features.templates.routes.create", "features.templates.routes.update"}
# By the function that is called, the test that goes there.
BLOCKS_AND_AGENTS = {
    "api.agents.create": "test_what_begins_with_a_secret_never_had_it",
    "features.agent_files.routes.import_file": "test_what_begins_with_a_secret_never_had_it",
    "features.templates.routes.create_agents": "test_what_begins_with_a_secret_never_had_it",
    "features.templates.jobs.migrate": "test_a_new_version_of_a_template_is_a_version_or_a_proposal_without_a_secret",
    "features.imports.cli.import_letta": "test_agents_of_a_letta_server_come_through_the_door",
    "features.imports.routes.upload": "test_an_import_makes_an_agent_without_blocks",
    "features.courses.jobs.run": "test_a_course_makes_agents_without_secrets",
    "features.courses.routes.apply": "test_a_course_makes_agents_without_secrets",
    "features.courses.routes.put": "test_a_course_makes_agents_without_secrets",
    "features.memories.routes.add": "test_the_agent_that_files_has_an_empty_block_and_its_turns_go_through_the_door",
    "features.imports.cli._add_command": "test_an_import_makes_an_agent_without_blocks",
    "api.blocks.create": "test_what_begins_with_a_secret_never_had_it",
    "api.blocks.modify": "test_an_owners_write_is_a_version_whatever_the_policy",
    "api.blocks.modify_of_agent": "test_an_owners_write_is_a_version_whatever_the_policy",
    "features.typed_memory.client.InProcessClient.__init__": "test_typed_memory_writes_through_the_door",
    "features.typed_memory.client.AgentCalls.create": "test_typed_memory_writes_through_the_door",
    "features.typed_memory.client.BlockCalls.update": "test_typed_memory_writes_through_the_door",
    "api.block_proposals.approve": "test_a_proposal_to_an_agents_block_is_approved_as_a_version_of_the_agent",
    "features.notes.routes.update": "test_an_edit_of_a_note_is_the_owners_version_without_a_secret",
    "api.blocks.delete": "test_a_block_that_is_deleted_by_its_id_leaves_a_version",
}
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


class _Package:
    """What each module's names stand for (functions, classes and modules of the package), and the functions' bodies."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}
        self.bodies: dict[str, tuple[str, str, _Function]] = {}
        self.methods: dict[str, list[str]] = {}
        for path in sorted(_ROOT.rglob("*.py")):
            if parts := [part for part in path.relative_to(_ROOT).with_suffix("").parts if part != "__init__"]:
                self._read(".".join(parts), ast.parse(path.read_text("utf-8")))

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


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph of the whole package."""
    found = _Package()
    routed = {
        name
        for name, (_, _, body) in found.bodies.items()
        if any("router." in ast.unparse(decorator) for decorator in body.decorator_list)
    }
    return Graph({name: set(found.named(name)) for name in found.bodies}, routed)


def test_every_way_to_the_door_is_gone_by_a_test(graph: Graph) -> None:
    """A new route, job or name for programs that writes memory: add it to a list, and say what it does."""
    listed = {way.enters for way in (*OWNERS_WAYS.values(), *PROPOSALS_WAYS.values())}
    assert graph.begins(DOORS) == listed | set(BLOCKS_AND_AGENTS) | TURNS | TRIALS


def test_a_way_that_nobody_listed_is_found(graph: Graph) -> None:
    new = {
        "plugins.teach": {"memory.user_memory.put"},
        "api.new.teach": {"memory.step_commit.commit"},
        "api.new.read": set(),
    }
    more = Graph({**graph.leads_to, **new}, graph.routed | {"api.new.teach", "api.new.read"})
    assert more.begins(DOORS) - graph.begins(DOORS) == {"plugins.teach", "api.new.teach"}


def test_turns_write_memory_with_their_steps_alone(graph: Graph) -> None:
    assert graph.without(SAVING).leading_to(DOORS).isdisjoint(TURNS)


def test_the_tests_that_are_named_are_there() -> None:
    assert set(BLOCKS_AND_AGENTS.values()) <= set(vars(test_write_paths))


def test_only_the_door_writes_the_tables_of_memory() -> None:
    """A second way in would be one that no policy guards: take the door, or stand in this list with a reason."""
    writes = re.compile(rf"\b(?:insert|update|delete|setter|Missing)\(\s*({_TABLES})\b")
    rows_of = re.compile(rf"\bRepository\(\s*\w+,\s*({_TABLES})\b")
    found: dict[str, set[str]] = {}
    for path in _ROOT.rglob("*.py"):
        source = path.read_text("utf-8")
        if re.search(r"^from [\w.]*tables import", source, re.MULTILINE):
            tables = {*writes.findall(source)}
            tables |= {*rows_of.findall(source)} if re.search(r"\.(insert|updates)\(", source) else set()
            found |= {path.relative_to(_ROOT).as_posix(): tables} if tables else {}
    assert set(found) <= DOOR | BESIDE, found
    assert found["storage/blocks.py"] >= {"blocks"}
    assert found["storage/versions.py"] >= {"commits", "chains"}
