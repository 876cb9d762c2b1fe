"""The architecture: layers, sizes, import cycles, outside access, and forbidden file contents.

Each check is a function that takes modules and returns sentences about faults. So the last tests
can call it with small bad modules.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The only names that the root folder may hold. Add a name only if its file belongs there.
ROOT_NAMES = set(
    ".ci .dockerignore .gitignore CHANGELOG.md Containerfile LICENSE Makefile README.md SECURITY.md"
    " bench clients deploy docs examples pyproject.toml requirements ricordo tests zensical.toml".split()
)
# Databases, locks, keys and logs: files that a running server writes.
SERVER_FILES = re.compile(r"\.(db|db-wal|db-shm|sqlite|lock|key|log)$")

# Layers from left to right. A module imports from the layers to the left of its layer, and from its
# folder.
LAYERS = (
    *(
        "errors installed_plugins setting_types settings logs new_files secret signed_tokens offload",
        "domain",
        "prompt",
        "llm storage",
        "sandbox",
        "search",
        "memory",
        "tools",
        "runtime plugins",
    ),
    *("agents", "background", "api", "pages", "features", "app", "embedded", "cli"),
)
MOST_PACKAGES = 12
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts.split()}
SIBLINGS = {
    ("settings", "errors"),
    ("settings", "setting_types"),
    ("installed_plugins", "errors"),
    ("setting_types", "installed_plugins"),
    ("secret", "errors"),
    ("secret", "new_files"),
    ("signed_tokens", "errors"),
    ("logs", "errors"),
    ("runtime", "plugins"),
}
MAX_PARAMETERS = 8
# Packages that functions may import: optional ones, and slow ones that not every command needs. An
# import of our own modules in a function needs a comment.
LATE = set(
    """
    anthropic anyio charset_normalizer confusable_homoglyphs cryptography dulwich email fastapi fsrs google honcho httpx2
    jinja2 smtplib
    jsonschema jwt markdown_it mcp
    numpy openai
    procrastinate prometheus_client psycopg pydantic_ai pymysql re2 readline rich
    latex2mathml pygments sqlalchemy tokenizers typer urllib3 uvicorn uvloop
    """.split()
)
MOST_LATE_IMPORTS = 40  # imports of our own modules
# These modules are no part of the server. They run in other processes: in Open WebUI, in the
# sandbox, or with another sqlite3 library.
OTHER_PROCESSES = (
    *(
        f"features/{name}/program.py"
        for name in (
            "custom_tools/source",
            "files/folders",
            "custom_tools/run_code",
            "custom_tools/web",
        )
    ),
    *("features/sync/dolt/child.py", "sandbox/launcher.py"),
    *(f"features/openwebui/mirror/{name}.py" for name in ("pipe", "deleted_chats")),
)
# Outside libraries, and the only parts of the package that may import each.
DOORS = {
    **{name: {"storage", "search"} for name in ("sqlalchemy", "sqlite3")},
    **{name: {"llm"} for name in ("pydantic_ai", "anthropic", "openai")},
    "httpx2": {"llm", "cli"},
}
# The modules of a feature that may talk to the database or to an outside service.
FEATURE_DOORS = {
    "tables.py",
    "queries.py",
    "sleep_queries.py",
    "document_queries.py",
    "talk_queries.py",
    "belonging_queries.py",
    "block_queries.py",
    "source_queries.py",
    "service.py",
    "sessions.py",
    "oauth.py",
}


@dataclass(frozen=True)
class Import:
    """One imported module, the line of the import, and when the import runs.

    `when` is "start" (with the module), "call" (in a function) or "types" (for type checkers only).
    """

    target: str
    line: int
    when: str


@dataclass(frozen=True)
class Module:
    """One file of the package. `path` is its path in the package: `storage/blocks.py`."""

    path: str
    source: str
    package: frozenset[str] = field(default=frozenset(), repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def name(self) -> str:
        return f"ricordo.{self.path.removesuffix('.py').removesuffix('__init__').replace('/', '.')}".strip(
            "."
        )

    @property
    def part(self) -> str:
        """The folder or file of the package that the module belongs to.

        A feature's `cli.py` belongs to `cli`, as `cli/serve.py` does.
        """
        pieces = self.path.split("/")
        is_command = pieces[0] in ("cli.py", "cli") or (
            pieces[0] == "features" and pieces[-1] == "cli.py"
        )
        return "cli" if is_command else pieces[0].removesuffix(".py")

    @property
    def feature(self) -> str | None:
        """The feature that the module belongs to; None for the core."""
        pieces = self.path.split("/")
        return pieces[1] if pieces[0] == "features" and len(pieces) > 2 else None

    @property
    def is_plugin(self) -> bool:
        """Whether the module is the `__init__.py` of a feature or of one of its parts."""
        depth = self.path.count("/")
        return self.feature is not None and self.path.endswith("/__init__.py") and depth <= 3

    @cached_property
    def imports(self) -> list[Import]:
        return list(dict.fromkeys(self._imports(self.tree, "start")))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return list(_functions(self.tree))

    def _imports(self, node: ast.AST, when: str) -> Iterator[Import]:
        for child in statements_in(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, when)
            elif isinstance(child, ast.ImportFrom):
                base = self._absolute(child)
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    yield Import(whole if whole in self.package else base, child.lineno, when)
            elif isinstance(child, ast.If) and is_for_types(child.test):
                for inner in child.body:
                    yield from self._imports(
                        ast.Module([inner], []), "types" if when == "start" else when
                    )
                for inner in child.orelse:
                    yield from self._imports(ast.Module([inner], []), when)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._imports(child, "call")
            else:
                yield from self._imports(child, when)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".") + (["__init__"] if self.path.endswith("__init__.py") else [])
        return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a node, and its handlers and cases.

    Expressions are most of a tree, and hold no statements.
    """
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, block, ())


def is_for_types(condition: ast.expr) -> bool:
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(condition))
    return "TYPE_CHECKING" in names


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in statements_in(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        yield from _functions(child)


def modules_of(sources: dict[str, str]) -> list[Module]:
    names = frozenset(Module(path, "").name for path in sources)
    return [Module(path, source, names) for path, source in sorted(sources.items())]


def part_of(target: str) -> str | None:
    """Return the part of the package that an import names.

    It is None for other packages, and "" for the package itself.
    """
    root, _, rest = target.partition(".")
    if root != "ricordo":
        return None
    return Module(rest.split(".")[0] + ".py" if rest else "", "").part


# --- the checks ---


def wrong_directions(modules: Iterable[Module]) -> list[str]:
    """A module imports only from layers to its left.

    So a reader who knows those layers can understand the module without any other.
    """
    faults = []
    for module in modules:
        level = -1 if module.path == "__init__.py" else LEVEL.get(module.part)
        if level is None:
            faults.append(f"{module.path} belongs to no layer")
            continue
        for imported in module.imports:
            part = part_of(imported.target)
            if not part or part == module.part or (module.part, part) in SIBLINGS:
                continue
            # The package imports the types of its public functions for type checkers only.
            if module.path == "__init__.py" and imported.when == "types":
                continue
            if LEVEL.get(part, len(LAYERS)) >= level:
                faults.append(
                    f"{module.path}:{imported.line} ({module.part}) imports {imported.target}"
                )
    return faults


def mixed_features(modules: Iterable[Module]) -> list[str]:
    """The core imports no feature, and a feature imports only the features that it requires.

    So a feature can be deleted together with its name in the list.
    """
    modules = list(modules)
    required: dict[str | None, list[str]] = {None: []}
    for module in modules:
        if module.is_plugin:
            named = re.search(r"^    requires=\(([^)]*)\),$", module.source, re.MULTILINE)
            names = re.findall(r"\"(\w+)\"", named.group(1)) if named else []
            required[module.feature] = [*required.get(module.feature, ()), *names]
    return [
        f"{module.path}:{imported.line} imports the feature {found.group(1)}"
        for module in modules
        for imported in module.imports
        if (found := re.match(r"ricordo\.features\.(\w+)", imported.target))
        if found.group(1) not in ("FEATURES", module.feature, *required.get(module.feature, ()))
    ]


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    rest = [each for each in (given.vararg, given.kwarg) if each]
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]
    return [name for name in names if name not in ("self", "cls")]


def many_parameters(modules: Iterable[Module]) -> list[str]:
    """A function has at most eight parameters; more of them should be one value.

    Routes with many query parameters take a model.
    """
    return [
        f"{module.path}:{node.lineno} {node.name} has {count} parameters"
        for module in modules
        for node in module.functions
        if (count := len(parameters_of(node))) > MAX_PARAMETERS
    ]


def import_cycles(modules: Sequence[Module]) -> list[str]:
    """No modules import each other in a cycle.

    Such modules cannot be read, tested or replaced one by one, and the order of their imports
    matters.
    """
    names = {module.name for module in modules}
    edges = {
        one.name: {i.target for i in one.imports if i.when == "start"} & names - {one.name}
        for one in modules
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return [" → ".join(reversed(error.args[1]))]
    return []


def mutual_folders(modules: Sequence[Module]) -> list[str]:
    """No two folders import each other: neither could be read first."""
    folders = {module.name: str(Path(module.path).parent) for module in modules}
    edges = {
        (folders[one.name], folders[i.target])
        for one in modules
        for i in one.imports
        if i.when == "start" and i.target in folders
    }
    both = {tuple(sorted(edge)) for edge in edges if edge[::-1] in edges and len({*edge, "."}) == 3}
    return [f"{one} and {other} import each other" for one, other in both]


def far_reaching_packages(modules: Sequence[Module]) -> list[str]:
    """No package imports more than twelve others; a feature counts as one package.

    To change a package, one has to know those that it imports.
    """
    packages = {module.name: _package(module.path) for module in modules}
    imported: dict[str, set[str]] = {}
    for module in modules:
        targets = {packages[i.target] for i in module.imports if i.target in packages}
        imported.setdefault(_package(module.path), set()).update(targets)
    faults = []
    for package, others in imported.items():
        others -= {package, ""}
        if len(others) > MOST_PACKAGES:
            faults.append(f"{package or 'ricordo'} imports {len(others)}: {sorted(others)}")
    return faults


def _package(path: str) -> str:
    """Return the folder of a module; "" for modules beside the folders, which count as none."""
    folder, _, _ = path.rpartition("/")
    first, _, second = folder.partition("/")
    if first == "features":
        feature, _, _ = second.partition("/")
        return f"features/{feature}" if feature else ""
    return first


def late_imports(modules: Iterable[Module]) -> list[str]:
    """A function imports a module only with a reason in a comment.

    Such an import hides a dependency. An optional extra or a faster start justifies it.
    """
    faults = []
    for module in modules:
        lines = module.source.splitlines()
        for imported in module.imports:
            if imported.when != "call" or module.path in OTHER_PROCESSES:
                continue
            root = imported.target.split(".")[0]
            before = lines[imported.line - 2].strip()
            is_explained = before.startswith(("#", "from ricordo.")) if root == "ricordo" else False
            if not is_explained and root not in LATE:
                faults.append(
                    f"{module.path}:{imported.line} imports {imported.target} in a function"
                )
    return faults


def without_docstring(modules: Iterable[Module]) -> list[str]:
    """Every file begins with a docstring, by which a newcomer decides whether to read on."""
    return [
        f"{module.path} does not say what it is for"
        for module in modules
        if not ast.get_docstring(module.tree)
    ]


def side_doors(modules: Iterable[Module]) -> list[str]:
    """SQL is in storage, and HTTP in llm, where they are counted and have time-outs."""
    return [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module in modules
        if module.path not in OTHER_PROCESSES
        for imported in module.imports
        if module.part not in DOORS.get(imported.target.split(".")[0], {module.part})
        and not (module.feature and module.path.split("/")[-1] in FEATURE_DOORS)
    ]


CORE_TABLES = ("ricordo.storage.schema.core_tables", "ricordo.storage.schema.memory_tables")
# Erasure deletes or hides a user's rows in all tables, as the schema says for each column.
ERASURE = "features/memory_care/erasure/"


# Features with SQL on core tables, and the reason why that SQL is not in `storage/`.
READERS_OF_CORE_TABLES = {
    ERASURE: "deletes and covers a user's rows in all tables, by what each column says",
    "features/memory_care/forgetting/": "searches and rewrites texts of all tables, likewise",
}


def reads_of_core_tables(modules: Iterable[Module]) -> list[str]:
    """SQL on a core table is in `storage/`, where its owner finds all of it.

    A feature calls functions of storage. It may also join a condition or a select of storage with
    its tables.
    """
    return [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module in modules
        if module.feature and not module.path.startswith(tuple(READERS_OF_CORE_TABLES))
        for imported in module.imports
        if imported.target in CORE_TABLES
    ]


# Settings that only features read, and the reason why the core declares them.
CORE_SETTINGS_OF_FEATURES = {
    **dict.fromkeys(
        ("oidc_client_id", "oidc_client_secret", "oidc_claim"),
        "with the issuer they are one group, and with it the guard of the API requires a key",
    ),
    "allow_private_remotes": "kinds of remotes of any plugin get the settings of the core",
}


def core_settings_of_features(modules: Sequence[Module]) -> list[str]:
    """The core declares the settings that it reads, and each feature declares its settings.

    So the settings of a feature are deleted with the feature.
    """
    core = [module for module in modules if not module.feature and module.path != "settings.py"]
    named = {name for module in core for name in re.findall(r"\w+", module.source)}
    return [
        f"settings.py declares {name}, which only features read"
        for module in modules
        if module.path == "settings.py"
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
        for name in fields_of(node)
        if name not in named and name not in CORE_SETTINGS_OF_FEATURES
    ]


def fields_of(node: ast.ClassDef) -> list[str]:
    return [
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def undeclared_settings(modules: Sequence[Module]) -> list[str]:
    """A feature names its settings in its `Feature`, where `ricordo settings` finds them."""
    plugins = {module.path: module.source for module in modules if module.is_plugin}
    return [
        f"{module.path}:{node.lineno} {node.name} is not in its Feature"
        for module in modules
        if module.feature
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
        if any(isinstance(base, ast.Name) and base.id == "FeatureSettings" for base in node.bases)
        if f'"{module.name}:{node.name}"'
        not in plugins.get(f"features/{module.feature}/__init__.py", "")
    ]


# Calls of `answer` and `embed` outside of `llm/` that send nothing to a model. They are an adapter
# around a model that is called through the gate, a job of the index, and Honcho's client.
NOT_MODELS = {
    ("agents/tracing.py", "answer"),
    ("search/rebuild.py", "embed"),
    ("features/knowledge/ask/service.py", "answer"),
}


def calls_past_the_gate(modules: Iterable[Module]) -> list[str]:
    """Only `llm/egress.py` calls a model or an embedder, since it checks the egress policies.

    A new kind of call must have a Clearance; this check finds calls without one.
    """
    return [
        f"{module.path}:{node.lineno} calls {name} past llm/egress.py"
        for module in modules
        if module.part != "llm"
        for node, name in model_calls_of(module)
        if (module.path, name) not in NOT_MODELS
    ]


# Calls of a model that nobody pays for. The first sends nothing; the second has a temporary
# database.
FREE_CALLS = {("features/letta/routes.py", "whole_reply"), ("cli/doctor_models.py", "ask")}


def calls_without_a_payer(modules: Iterable[Module]) -> list[str]:
    """Each call of a model has an account in whose ledger its tokens are, also if it fails."""
    return [
        f"{module.path}:{node.lineno} calls {name} without a payer"
        for module in modules
        if not module.path.startswith("llm/")
        for node, name in calls_of_the_gate(module)
        if (module.path, name) not in FREE_CALLS and not has_payer(node)
    ]


def calls_of_the_gate(module: Module) -> Iterator[tuple[ast.Call, str]]:
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ricordo.llm.egress"
        for alias in node.names
        if alias.name in ("ask", "whole_reply", "embed")
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node, names[node.func.id]


def has_payer(call: ast.Call) -> bool:
    payers = [*call.args[3:4], *(word.value for word in call.keywords if word.arg == "payer")]
    return any(not (isinstance(payer, ast.Constant) and payer.value is None) for payer in payers)


def model_calls_of(module: Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("answer", "embed"):
                yield node, node.func.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "ricordo.llm.chat":
            for alias in node.names:
                if alias.name == "whole_reply":
                    yield node, alias.name


def writes_of_core_tables(modules: Iterable[Module]) -> list[str]:
    """Only storage changes rows of core tables.

    It also keeps versions, sizes and the index in step with the rows.
    """
    return [
        f"{module.path}:{node.lineno} writes {node.args[0].id}"
        for module in modules
        if module.part not in ("storage", "search") and not module.path.startswith(ERASURE)
        for node in calls_of(module, ("insert", "update", "delete"))
        if isinstance(node.args[0], ast.Name) and node.args[0].id in core_tables_of(module)
    ]


def calls_of(module: Module, names: Sequence[str]) -> Iterator[ast.Call]:
    for node in ast.walk(module.tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if is_call and node.func.id in names:  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def core_tables_of(module: Module) -> set[str]:
    """Return the names under which the module imports core tables."""
    return {
        alias.asname or alias.name
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and node.module in CORE_TABLES
        for alias in node.names
    }


# Modules of a feature that requests, jobs and commands all use.
SERVICES = re.compile(r"^(\w+_)?(service|jobs|queries|records|tables)\.py$")


def services_of_http(modules: Iterable[Module]) -> list[str]:
    """Such modules import nothing from the HTTP layer, since jobs and commands have no request.

    A feature's models convert between the HTTP layer and these modules.
    """
    return [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module in modules
        if module.feature and SERVICES.match(module.path.split("/")[-1])
        for imported in module.imports
        if part_of(imported.target) == "api"
    ]


CHANGES = frozenset("setdefault add append pop update clear extend discard remove".split())
# Module values that functions change, and the reason why they belong to the process and not to a
# server.
PROCESS_STATE = {
    "api/bodies.py LARGE_BODIES": "bound the memory of the process",
    "api/models/base.py _RECIPES": "follow from the source code alone",
    "offload.py _GATES": "bound what the threads of the process do at once, for each event loop",
    "offload.py _IMPORTED": "modules",
    "search/words.py _machines": "follow from the languages alone",
}


def hidden_state(modules: Iterable[Module]) -> list[str]:
    """A server keeps its state in its runtime, not in module values.

    Two servers of one process, and the tests, would share a module value.
    """
    return [
        f"{module.path}:{line} changes {name}"
        for module in modules
        if module.path not in OTHER_PROCESSES
        for name, line in changed_globals(module)
        if f"{module.path} {name}" not in PROCESS_STATE
    ]


def changed_globals(module: Module) -> Iterator[tuple[str, int]]:
    """Yield the module's and its classes' names that functions change, each with a line."""
    names = {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for function in module.functions:
        nodes = list(ast.walk(function))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)} | {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node in nodes:
            if isinstance(node, ast.Global):
                yield node.names[0], node.lineno
            changed = changed_value(node)
            if changed in names - own:
                yield str(changed), node.lineno  # type: ignore[attr-defined]


def changed_value(node: ast.AST) -> str | None:
    """Return the name of the value in which this node sets or removes something."""
    holder: ast.expr | None = None
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        holder = node.value
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CHANGES
    ):
        holder = node.func.value
    return holder.id if isinstance(holder, ast.Name) else None


# The patterns are joined from pieces, so that this file does not match them.
OUR_PATHS = re.compile(r"(?<![\w.~:/}-])/" + "(?:work|root)" + r"(?![\w-])")
INDEXES = re.compile(
    "|".join((r"pypi\." + "org", "python" + "hosted", "index-" + "url", r"npmjs\." + "org"))
)


def foreign_words(text: str) -> list[str]:
    """Return the paths of the author's machine and the addresses of package indexes in a text."""
    return [match.group() for pattern in (OUR_PATHS, INDEXES) for match in pattern.finditer(text)]


CHECKS: tuple[Callable[[list[Module]], list[str]], ...] = (
    *(wrong_directions, mixed_features, many_parameters),
    *(
        import_cycles,
        mutual_folders,
        far_reaching_packages,
        late_imports,
        without_docstring,
        side_doors,
        hidden_state,
    ),
    services_of_http,
    reads_of_core_tables,
    writes_of_core_tables,
    core_settings_of_features,
    undeclared_settings,
    calls_past_the_gate,
    calls_without_a_payer,
)

# --- the package ---


@pytest.fixture(scope="module")
def house() -> list[Module]:
    package = ROOT / "ricordo"
    modules = modules_of(
        {
            str(p.relative_to(package).as_posix()): p.read_text("utf-8")
            for p in package.rglob("*.py")
        }
    )
    assert len(modules) > 20
    return modules


def code_lines(module: Module) -> int:
    """Return the number of lines without blank lines, comments and docstrings."""
    tree = ast.parse(module.source)
    documented: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines = enumerate(module.source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in lines
    )


@pytest.mark.parametrize("door", ["ag_ui", "a2a", "memory_tool"])
def test_a_protocol_adapter_is_small(house: list[Module], door: str) -> None:
    sizes = [code_lines(module) for module in house if module.feature == door]
    assert 100 < sum(sizes) <= 300


def test_a_module_imports_only_from_layers_to_its_left(house: list[Module]) -> None:
    assert wrong_directions(house) == []


@pytest.mark.parametrize("check", CHECKS[1:])
def test_the_package_follows_the_architecture_rules(
    check: Callable[[list[Module]], list[str]], house: list[Module]
) -> None:
    assert check(house) == [], check.__doc__


def test_few_own_imports_are_inside_functions(house: list[Module]) -> None:
    late = [
        imported
        for module in house
        for imported in module.imports
        if imported.when == "call" and imported.target.split(".")[0] == "ricordo"
    ]
    assert len(late) <= MOST_LATE_IMPORTS


def committed() -> list[str]:
    """Return the names of the files that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


def test_the_repository_has_only_listed_names_and_no_server_files() -> None:
    """A page's example once wrote its database and secret key here, and both were committed."""
    names = committed()
    assert {name.split("/")[0] for name in names} - ROOT_NAMES == set()
    assert [name for name in names if SERVER_FILES.search(name)] == []


def test_no_file_contains_a_local_path_or_a_package_index_address() -> None:
    """Such paths and index addresses break on other machines."""
    faults, read = [], 0
    for name in committed():
        try:
            text = (ROOT / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        read += 1
        faults += [f"{name} holds {word}" for word in foreign_words(text)]
    assert read > 20
    assert faults == []


# --- the tests ---

# Tests that may import internals of the package, with the reason. All other tests use
# `tests.seams`, `ricordo.app`, domain values, errors and settings. So the internals can change
# without those tests.
INSIDE = {
    "seams": "they are the way in",
    "support": "campaigns and servers of their own, which look behind the seams",
    "storage": "repositories",
    "sandbox": "what a process sees and leaves behind, without a server around it",
    "search": "repositories, and pure modules of the index",
    "llm": "adapters, against scripted servers of each provider",
    "prompt": "pure modules",
    "memory": "pure modules, and units of work on repositories",
    "tools": "pure modules, and tools without a turn around them",
    "agents": "the parts of a turn, each by itself",
    "behaviour/test_a_first_course.py": "days pass between two looks of the job",
    "bench": "what the product writes in place of a forgotten text",
    "background": "the worker and its handlers, without a server around them",
    "api": "response models against the OpenAPI document, and parts of the HTTP shell",
    "cli": "what commands compute, apart from what they print",
    "features": "each feature's tables, formats and services",
    "campaigns": "several servers in one process, and remotes whose sync is killed",
    "conftest.py": "the store that tests of repositories get",
    "test_docs.py": "what the pages name",
    "test_logs.py": "a pure module",
    "test_message_path.py": "the worker, which it switches off",
    "test_offload.py": "a pure module",
    "test_patterns.py": "every pattern of the source",
    "test_features.py": "which features need others, which only the plugins know",
    "test_plugins.py": "hooks",
    "test_secret.py": "a pure module",
    "test_settings.py": "settings that features declare",
}
OUTSIDE = re.compile(r"ricordo\.(app|domain|errors|features\.FEATURES|settings|setting_types)\b")


def inside_imports(source: str) -> set[str]:
    """Return the internals of the package that a test imports.

    Names of the package itself, such as its version, are not internals.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not alias.name.startswith("__")
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if re.match(r"ricordo\.", name) and not OUTSIDE.match(name)}


def test_only_listed_tests_import_internals_and_every_entry_is_needed() -> None:
    tests = ROOT / "tests"
    # Parsing all tests takes seconds. So only unlisted tests that import `ricordo.` are parsed.
    found = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if re.search(r"^\s*(?:from|import) ricordo\.", path.read_text("utf-8"), re.MULTILINE)
    }
    covered = {
        entry: {path for path in found if path == entry or path.startswith(f"{entry}/")}
        for entry in INSIDE
    }
    others = found - set().union(*covered.values())
    assert [
        path for path in sorted(others) if inside_imports((tests / path).read_text("utf-8"))
    ] == []
    assert [entry for entry, paths in covered.items() if not paths] == []


# --- the checks find faults ---

DOC = '"""What it is for."""\n'
BAD: dict[Callable[[list[Module]], list[str]], list[tuple[dict[str, str], str]]] = {
    wrong_directions: [
        (
            {"domain/a.py": "from ricordo import settings, storage", "storage/__init__.py": ""},
            "storage",
        ),
        ({"domain/a.py": "from ..storage import store"}, "imports ricordo.storage"),
        ({"domain/a.py": "def f():\n    import ricordo.cli"}, "domain/a.py:2"),
        ({"domain/a.py": "if TYPE_CHECKING:\n    from ricordo.api import page"}, "domain/a.py:2"),
        ({"storage/a.py": "import ricordo.llm.chat"}, "storage/a.py:1"),
        (
            {"features/sync/git/service.py": "from ricordo.app import x"},
            "features/sync/git/service.py:1",
        ),
        ({"helpers.py": ""}, "helpers.py belongs to no layer"),
        ({"__init__.py": "from ricordo.app import create"}, "__init__.py:1"),
    ],
    mixed_features: [
        ({"cli/a.py": "import ricordo.features.sync.git"}, "cli/a.py:1 imports the feature sync"),
        (
            {
                "features/a/__init__.py": 'feature = Feature(\n    requires=("c",),\n)',
                "features/a/b.py": "from ricordo.features.b import x",
            },
            "features/a/b.py:1 imports the feature b",
        ),
    ],
    many_parameters: [
        (
            {"a.py": "class A:\n  def f(self, a, /, b, c, *d, e, f, g, h, **i): ..."},
            "f has 9 parameters",
        )
    ],
    import_cycles: [
        (
            {"domain/a.py": "from .b import x", "domain/b.py": "from . import a"},
            "ricordo.domain.a → ricordo.domain.b →",
        )
    ],
    mutual_folders: [
        (
            {"a/x.py": "import ricordo.b.x", "b/x.py": "", "b/y.py": "from ..a import x"},
            "a and b import each other",
        )
    ],
    far_reaching_packages: [
        (
            {
                "features/a/b/x.py": "".join(f"import ricordo.p{n}.x\n" for n in range(13)),
                **{f"p{n}/x.py": "" for n in range(13)},
            },
            "features/a imports 13",
        ),
        (
            {
                "features/a/x.py": "".join(f"import ricordo.p{n}.x\n" for n in range(8)),
                "features/a/y.py": "".join(f"import ricordo.p{n}.x\n" for n in range(8, 13)),
                **{f"p{n}/x.py": "" for n in range(13)},
            },
            "features/a imports 13",
        ),
    ],
    late_imports: [
        ({"features/a/service.py": "def f():\n    import ricordo.api"}, "features/a/service.py:2"),
        ({"features/a/__init__.py": "def f():\n    from ricordo import api"}, "__init__.py:2"),
        ({"features/a/cli.py": "def f():\n    import ricordo.app"}, "features/a/cli.py:2"),
        ({"llm/a.py": "class A:\n  def f(self):\n    if x:\n      import requests"}, "llm/a.py:4"),
        ({"cli.py": "def f():\n    import requests"}, "cli.py:2"),
    ],
    without_docstring: [({"a/__init__.py": ""}, "a/__init__.py does not say")],
    hidden_state: [
        ({"a.py": "A: dict[str, str] = {}\ndef f():\n    A['x'] = 'y'"}, "a.py:3 changes A"),
        ({"a.py": "A = []\nclass B:\n    def f(self):\n        A.append(1)"}, "a.py:4"),
        ({"a.py": "A = None\ndef f():\n    global A\n    A = 1"}, "a.py:3 changes A"),
        ({"a.py": "A = B()\ndef f():\n    del A.x"}, "a.py:3 changes A"),
    ],
    writes_of_core_tables: [
        (
            {
                "features/a/queries.py": "from ricordo.storage.schema.core_tables import jobs as j\ndef f(tx):\n    "
                "tx.run(delete(j).where(x))"
            },
            "features/a/queries.py:3 writes j",
        ),
    ],
    reads_of_core_tables: [
        (
            {
                "features/a/queries.py": "from ricordo.storage.schema.core_tables import jobs",
                "storage/schema/core_tables.py": "",
                "storage/jobs.py": "from ricordo.storage.schema.core_tables import jobs",
            },
            "features/a/queries.py:1 imports ricordo.storage.schema.core_tables",
        ),
        (
            {
                "features/a/tools.py": "from ricordo.storage.schema import memory_tables",
                "storage/schema/memory_tables.py": "",
            },
            "features/a/tools.py:1",
        ),
    ],
    core_settings_of_features: [
        (
            {
                "settings.py": "class Settings:\n    port: int = 1\n    lamp: str = 'a'\n",
                "app.py": "def f(settings):\n    return settings.port\n",
                "features/a/b.py": "def f(settings):\n    return settings.lamp\n",
            },
            "settings.py declares lamp",
        )
    ],
    undeclared_settings: [
        (
            {
                "features/a/__init__.py": 'feature = Feature(\n    settings=("ricordo.features.a.options:A",),\n)',
                "features/a/options.py": "class A(FeatureSettings): ...\nclass B(FeatureSettings): ...",
            },
            "features/a/options.py:2 B is not in its Feature",
        )
    ],
    calls_past_the_gate: [
        (
            {"agents/a.py": "async def f(model):\n    return model.answer(1)\n"},
            "agents/a.py:2 calls",
        ),
        ({"search/a.py": "async def f(e):\n    await e.embed(['x'])\n"}, "search/a.py:2 calls"),
        ({"api/a.py": "from ricordo.llm.chat import whole_reply\n"}, "api/a.py:1 calls"),
    ],
    calls_without_a_payer: [
        ({"agents/a.py": f"from ricordo.llm.egress import {line}\n"}, f"agents/a.py:2 calls {name}")
        for name, line in (
            ("ask", "ask\nask(model, request, clearance, payer=None)"),
            ("whole_reply", "whole_reply as reply_of\nreply_of(model, request, clearance, None)"),
            ("embed", "embed\nembed(embedder, texts, clearance)"),
        )
    ],
    services_of_http: [
        ({"features/a/b/service.py": "from ricordo.api import x"}, "features/a/b/service.py:1"),
        ({"features/a/talk_queries.py": "import ricordo.api.x"}, "talk_queries.py:1"),
    ],
    side_doors: [
        ({"memory/a.py": "from sqlalchemy import select"}, "memory/a.py:1"),
        ({"app.py": "def f():\n    import sqlite3"}, "app.py:2"),
    ],
}


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_finds_a_bad_module(check: Callable[[list[Module]], list[str]]) -> None:
    for sources, expected in BAD[check]:
        (fault,) = check(modules_of(sources))
        assert expected in fault


def test_a_good_package_has_no_faults() -> None:
    sources = {
        "__init__.py": "__version__ = '1'\nif TYPE_CHECKING:\n    from ricordo.llm import chat\n",
        "settings.py": "import os\nfrom ricordo.errors import Invalid\n",
        "domain/a.py": "if TYPE_CHECKING:\n    from ricordo.domain import b\n",
        "domain/b.py": "from . import a\nfrom ricordo import errors\nfrom ricordo import __version__\n",
        "storage/engine/store.py": "import sqlite3\nimport sqlalchemy.exc\nfrom ricordo.domain.a import A\n",
        "llm/late.py": "def f():\n    import pydantic_ai.direct\n    import httpx2\n",
        "cli/__init__.py": "from ricordo.features import FEATURES\ndef f():\n    # Slow.\n    from ricordo.app "
        "import create\n",
        "features/a/__init__.py": 'feature = Feature(\n    requires=("b",),\n)\n',
        "features/a/service.py": "from ricordo.features.b import x\n",
        "features/a/models.py": "from ricordo.api import y\n",
        "features/a/cli.py": "from ricordo.app import create\n",
        "domain/c.py": "A = {}\ndef f(a):\n    A = {}\n    A['x'] = A.get(1)\n    a.append(1)\n",
        "app.py": "def f(self, a, b, c, d, *, e, f, g, h):\n" + "    x = 1\n" * 59,
    }
    good = modules_of({path: DOC + source for path, source in sources.items()})
    assert {check.__name__: faults for check in CHECKS if (faults := check(good))} == {}


def test_local_paths_and_index_addresses_are_found() -> None:
    slash = "/"
    paths = (f"see {slash}work/main", f'"{slash}root/.cache"', f"={slash}work")
    for bad in (
        *paths,
        "https://pypi." + "org/simple",
        "files.python" + "hosted.org",
        "--index-" + "url x",
    ):
        assert len(foreign_words(bad)) == 1, bad
    for good in (
        "home/work/x",
        "https://host/work",
        "/workspace",
        "/roots",
        "./work/x",
        "{pid}/root",
        "pip --no-index",
    ):
        assert foreign_words(good) == [], good


def test_imports_of_internals_are_found() -> None:
    for bad in (
        "from ricordo.storage import blocks",
        "import ricordo.api.guard",
        "from ricordo.apps import x",
    ):
        assert len(inside_imports(bad)) == 1, bad
    for good in (
        "from ricordo.app import create_app",
        "from ricordo import __version__",
        "import ricordo.domain.run",
    ):
        assert inside_imports(good) == set(), good
