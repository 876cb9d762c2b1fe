"""Every route, called by every kind of caller who may not use it.

The server refuses each call before it does any work, and the refusal shows no data of another user.

The tests read the routes from the app, and build requests from the OpenAPI document. So they cover
a new route without a change, unless it takes a new kind of id or body. For such a route, add the
body in `tests/seams/routes.py`, or the object in `tests/seams/people.py`.

SHARED lists the routes to data that does not belong to one user alone. The `SHARED_ROUTES`
of a feature's test package lists such routes of the feature.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import httpx2
import pytest

from ricordo.api.call import RequestContext
from ricordo.api.guard import COOKIE
from ricordo.api.routing import GuardedRoute, Routes
from ricordo.domain.ids import new_id
from ricordo.domain.scope import ALL_SCOPES, IMPERSONATE
from ricordo.memory.schemas import FOLDER
from tests import features
from tests.campaigns.sizes import short_and_long
from tests.seams.people import (
    EVERY_USERS,
    OPERATOR,
    OTHER_ORGANIZATION,
    World,
    all_text,
    basic,
    bearer,
    open_world,
)
from tests.seams.routes import Cell, cells_of, fill

REFUSED = (401, 403, 404)
ROLES = ("user", "developer", "admin", "service")
GIT = 3
View = dict[str, tuple[int, str]]
FEW = 4  # where some cells are enough, a caller calls at most one in this number
AT_ONCE = 50  # cells called between two checks of the database
# Open to everybody: health checks and login.
OPEN = {
    ("GET", path)
    for path in (
        "/",
        "/v1/health",
        "/v1/health/",
        "/v1/health/live",
        "/v1/health/ready",
        "/health",
        "/login",
        "/login/callback",
        "/ui/login",
        "/v1/mcp-servers/oauth/callback",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
    )
}
# A one-time link is itself the credential; a person who requests one by e-mail has none yet.
OPEN |= {
    (method, path)
    for path in ("/decide", "/invitation", "/login/link")
    for method in ("GET", "POST")
}
OPEN.add(("POST", "/login/mail"))
OPEN |= {("POST", f"/oauth/{name}") for name in ("register", "token", "revoke")}
OPEN |= {("GET", "/ui/static/{name}"), ("GET", "/ui/pdf-viewer/{name}"), ("POST", "/ui/login")}
# Routes that always refuse, kept for older clients. Their object never exists, or they do nothing.
ALWAYS_REFUSED = {
    ("GET", "/v1/environments/{device}"),
    ("POST", "/v1/environments/{connection}/messages"),
    ("PATCH", "/v1/agents/{agent_id}/messages/{message_id}"),
    ("PATCH", "/v1/groups/{group_id}/messages/{message_id}"),
}
# Routes that need a valid key but no scope: the documentation, unknown pages, and signing out.
OTHER_ROUTES = {
    ("GET", path) for path in ("/openapi.json", "/docs", "/docs/{tag}", "/redoc", "/ui/{rest:path}")
}
OTHER_ROUTES |= {("GET", path) for path in ("/help", "/help/images/{name}", "/help/{name:path}")}
OTHER_ROUTES |= {("POST", "/logout"), ("POST", "/ui/logout")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("matrix")) as opened:
        yield opened


@pytest.fixture(scope="module")
def cells(world: World) -> list[Cell]:
    found = cells_of(world.server.app)
    others = {
        (sorted(route.methods - {"HEAD"})[0], route.path)
        for route in world.server.app.routes
        if not isinstance(route, GuardedRoute)
    }
    unscoped = {(cell.method, cell.path) for cell in found if not cell.scopes}
    assert others | unscoped == OPEN | OTHER_ROUTES, "a route without a scope"
    return [cell for cell in found if cell.scopes]


class Watch:
    """Watches whether anything was written, or a model called, since the last check."""

    def __init__(self, world: World) -> None:
        self._world = world
        path = world.server.settings.data_dir / "ricordo.db"
        self._file = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        self._seen = self._look()
        self._digest = self._read()

    def _look(self) -> int:
        return int(self._file.execute("PRAGMA data_version").fetchone()[0])

    def _read(self) -> dict[str, int]:
        """Return a hash of the rows of each table.

        Data that changes in the background is left out: jobs, the search index, the audit log, and
        the time at which a key was last used.
        """
        names = [
            row[0]
            for row in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        found = {}
        for name in names:
            if name != "jobs" and not name.startswith(("search_", "sqlite_", "audit_")):
                columns = [row[1] for row in self._file.execute(f'PRAGMA table_info("{name}")')]
                kept = ", ".join(f'"{column}"' for column in columns if column != "last_used_at")
                rows = self._file.execute(f'SELECT {kept} FROM "{name}"').fetchall()  # noqa: S608
                # Only count remotes: the progress of their syncs changes in the background.
                found[name] = (
                    len(rows) if name == "memory_remotes" else hash(tuple(sorted(map(repr, rows))))
                )
        return found

    def changes(self) -> list[str]:
        """Return the tables that changed since the last check, and "model" if one was called."""
        requests = self._world.server.model.requests
        asked = ["model"] if requests else []
        requests.clear()
        now = self._look()
        if now == self._seen:
            return asked
        before, self._seen, self._digest = self._digest, now, self._read()
        return asked + [name for name, one in self._digest.items() if before.get(name) != one]


@pytest.fixture(scope="module")
def watch(world: World) -> Watch:
    return Watch(world)


def require_refused(
    world: World,
    watch: Watch,
    cells: list[Cell],
    statuses: tuple[int, ...],
    headers: Any,
    values: Mapping[str, str],
) -> int:
    """Call each route as this caller, check that it is refused, and return the number of routes."""
    watch.changes()
    for start in range(0, len(cells), AT_ONCE):
        group = cells[start : start + AT_ONCE]
        for cell in group:
            answer = cell.ask(world.http, values, headers(cell) if callable(headers) else headers)
            assert answer.status_code in statuses, (cell, answer.status_code, answer.text[:300])
            require_silent(world, cell, answer)
        # Check after each group, not after each call: every refusal writes to the audit log, and
        # that makes the check read all tables.
        assert watch.changes() == [], group
    return len(cells)


def require_silent(world: World, cell: Cell, answer: httpx2.Response) -> None:
    """Check that the response holds no data of Ada's that was not in the request."""
    asked = str(answer.request.url) + str(answer.request.content)
    told = all_text(answer)
    assert [secret for secret in world.secrets if secret in told and secret not in asked] == [], (
        cell,
        told[:500],
    )


@pytest.fixture(scope="module")
def hers(world: World) -> dict[str, str]:
    folder = world.server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "student.toml").write_text("[fields.name]\n")
    return {**world.shared, **world.own, "schema_name": "student"}


NO_KEY: dict[str, Any] = {
    "no key": lambda _: {},
    "an expired key": lambda world: bearer(world.expired("late")),
    "a revoked key": lambda world: bearer(world.revoked("revoked")),
    "a disabled user's key": lambda world: bearer(world.disabled("disabled")),
    "an unknown key": lambda _: bearer("ricordo_" + "x" * 43),
    "garbage": lambda _: {"authorization": b"Bearer \xff\xfe"},
    "a key without its scheme": lambda world: {"authorization": world.ada},
    "a key in another header": lambda world: {"x-api-key": world.ada, "x-ricordo-user": "ada"},
}


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the delay of a second that follows many unknown keys from one address."""
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
def test_without_a_valid_key_every_route_is_refused(
    is_whole: bool, world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    everything = [*cells, *(Cell(method, path, ()) for method, path in OTHER_ROUTES)]
    for kind, part in zip(
        NO_KEY, parts_of(everything, len(NO_KEY), is_whole=is_whole), strict=True
    ):
        asked = everything if kind == "no key" else part
        require_refused(world, watch, asked, (401,), NO_KEY[kind](world), hers)


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
def test_a_key_in_basic_authentication_is_accepted_only_for_git(
    is_whole: bool, world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    others = [cell for cell in cells if "/memory.git/" not in cell.path]
    assert len(cells) - len(others) == GIT
    (part,) = parts_of(others, 1, is_whole=is_whole)
    require_refused(world, watch, part, (401,), basic("ada", world.ada), hers)


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
def test_a_login_cookie_cannot_be_used_to_write_from_another_site(
    is_whole: bool, world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    cookie = {"cookie": f"{COOKIE}={world.key('ada', scopes=EVERY_USERS, kind='session')}"}
    assert world.http.get("/users/ada/blocks", headers=cookie).status_code == 200
    sites: list[dict[str, str]] = [
        {},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ]
    for site, part in zip(
        sites, parts_of(writes(cells), len(sites), is_whole=is_whole), strict=True
    ):
        require_refused(world, watch, part, (403,), {**cookie, **site}, hers)
    # A page of this server may use the same cookie to write.
    assert world.http.post(
        "/v1/messages/search", json={}, headers={**cookie, "origin": world.server.url}
    ).is_success


def parts_of(cells: list[Cell], count: int, *, is_whole: bool) -> list[list[Cell]]:
    """Return lists of cells, one for each of `count` callers.

    In the long form each list contains all cells. In the suite each list contains a few cells, and
    no cell is in two lists. That is enough, since the server refuses these callers before it looks
    at the route.
    """
    return [cells if is_whole else cells[place :: count + FEW] for place in range(count)]


def writes(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.method != "GET"]


def test_a_key_with_every_scope_except_the_routes_is_refused(
    world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    lacking = {
        scopes: world.key("boss", "admin", tuple(sorted(ALL_SCOPES - {*scopes})))
        for scopes in {c.scopes for c in cells}
    }
    require_refused(world, watch, cells, (403,), lambda cell: bearer(lacking[cell.scopes]), hers)


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
def test_a_caller_without_the_impersonate_scope_cannot_act_for_a_user(
    is_whole: bool, world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    for role, part in zip(ROLES, parts_of(cells, len(ROLES), is_whole=is_whole), strict=True):
        key = world.key(f"{role}-in-disguise", role, tuple(sorted(ALL_SCOPES - {IMPERSONATE})))
        require_refused(world, watch, part, (403,), {**bearer(key), "X-Ricordo-User": "ada"}, hers)


# Routes to data that does not belong to Ada alone, each with the reason. Other callers in her
# organization may use these routes if their keys have the scope.
SHARED = {
    "an agent without a list of its users is everybody's; what others said with it is not": """
        (GET|PATCH|DELETE) /v1/agents/<agent_id>(/budget)?
        (POST|GET) /v1/agents/
        GET /v1/agents/count
        GET /v1/agents/<agent_id>/(tools|core-memory|core-memory/blocks)
        (GET|PATCH) /v1/agents/<agent_id>/core-memory/blocks/<block_label>
        POST /v1/agents/<agent_id>/messages(/stream|/async|/cancel|/preview-raw-payload)?
        GET /v1/agents/<agent_id>/archival-memory(/search)?
        POST /v1/agents/<agent_id>/(archival-memory|recompile|summarize)
        PATCH /v1/agents/<agent_id>/(reset-messages|tools/approval/<tool_name>)
        POST /v1/agents/<agent_id>/tools/<tool_name>/run
        PATCH /v1/agents/<agent_id>/(tools|archives)/(attach|detach)/<(tool|archive)_id>
        GET /v1/(messages|tags)/
        (GET|POST) /v1/client-side-access-tokens
        GET /v1/agents/<agent_id>/groups
        (GET|PATCH) /v1/agents/<agent_id>/sleeptime
        GET /v1/agents/<agent_id>/sleeptime/transcripts
        (GET|POST) (/v1/groups/|/ui/groups)
        GET /v1/groups/count
        (GET|PATCH|DELETE) /v1/groups/<group_id>
        (GET|POST) /v1/groups/<group_id>/messages(/stream|/async)?
        PATCH /v1/groups/<group_id>/reset-messages
        (GET|POST) /ui/groups/<group_id>(/say|/reset|/delete)?
        GET /ui/sleeptime(/<agent_id>)?
        POST /ui/sleeptime/<agent_id>(/frequency)?
        (GET|POST) /v1/agents/<agent_id>/export
        POST /v1/(agents/import|imports)
        POST /v1/agents/<agent_id>/generate
        (GET|POST) /v1/agents/<agent_id>/schedule
        (GET|POST) /v1/messages/batches
        PATCH /v1/agents/<agent_id>/messages/<message_id>
        POST /v1/(conversations/|chat/completions(/chat/completions)?|responses)
        POST /v1/voice-beta/<agent_id>/chat/completions
        POST /(mcp|chat/stream)
    """,
    "a consent is the caller's own": """
        GET /oauth/authorize
        (GET|POST) /oauth/consent
    """,
    "a course is the organization's": """
        GET /v1/courses/(<course_name>)?
        POST /v1/courses/(apply|check|<course_name>/check)
        (PUT|DELETE) /v1/courses/<course_name>
        GET /ui/courses(/<course_name>)?
        POST /ui/courses/apply
    """,
    "the shared workspace is the organization's, and the page shows the caller's own": """
        GET /v1/workspace/files(/<shared_path>)?
        (PUT|DELETE) /v1/workspace/files/<shared_path>
        GET /ui/(workspace|shared-workspace|connect)
        POST /ui/shared-workspace/(upload|files/<shared_path>/delete)
    """,
    "notes are the caller's own": "GET /api/you/notes/",
    "metrics are numbers of the server, and name nobody": "GET /metrics",
    # A background task belongs to the organization, and each of its runs to the user for whom it
    # ran.
    "a background task is the organization's, and a run of it the user's it was for": """
        (GET|POST) /background/tasks
        (GET|DELETE) /background/tasks/<task_name>
        GET /background/tasks/<task_name>/runs
        POST /background/tasks/<task_name>/(enable|disable|run)
        GET /ui/tasks(/<task_name>)?
        POST /ui/tasks/<task_name>/(enable|disable|run)
    """,
    "pages with lists show what the caller may see, and forms make what the caller may make": """
        POST /ui/(first|say)
        GET /ui/(chat|runs|jobs|models|search|people|schedules)
        (GET|POST) /ui/imports
        (GET|POST) /ui/agents
        GET /ui/agents/<agent_id>(/settings|/context|/archive|/memory|/memory/new)?
        POST /ui/agents/<agent_id>/memory/new
        GET /ui/agents/<agent_id>/chat(/part|/versions)?
        POST /ui/agents/<agent_id>/chat(/new|/fork|/again|/stop|/decide|/change)?
        POST /ui/agents/<agent_id>/(settings|tools/<tool_id>|secrets|delete|reset|archive)
        (GET|POST) /ui/mcp
        GET /ui/mcp/<mcp_server_id>
        POST /ui/mcp/<mcp_server_id>/(refresh|connect|delete|tools/<mcp_tool_id>/accept)
        (GET|POST) /ui/tools
        GET /ui/tools/new
        (GET|POST) /ui/tools/<tool_id>
        POST /ui/tools/(variables|<tool_id>/(try|delete))
        POST /ui/models/providers
        POST /ui/models/providers/<provider_id>/(check|delete)
    """,
    "models, tools and providers are the organization's": """
        GET /v1/models/(embedding)?
        GET /v1/models(/<model_id>)?
        POST /v1/embeddings
        GET /v1/tools/(<tool_id>|count)?
        (POST|PUT) /v1/tools/
        POST /v1/tools/(search|run|add-base-tools)
        GET /v1/environments
        (PATCH|DELETE) /v1/tools/<tool_id>
        (GET|POST) /v1/sandbox-config/
        POST /v1/sandbox-config/(local|local/default|e2b/default|local/recreate-venv)
        (PATCH|DELETE) /v1/sandbox-config/<sandbox_config_id>
        (GET|POST) /v1/sandbox-config/<sandbox_config_id>/environment-variable
        (PATCH|DELETE) /v1/sandbox-config/environment-variable/<variable_id>
        (GET|POST) /v1/mcp-servers/
        (GET|PATCH|DELETE) /v1/mcp-servers/<mcp_server_id>
        PATCH /v1/mcp-servers/<mcp_server_id>/refresh
        GET /v1/mcp-servers/<mcp_server_id>/tools(/<mcp_tool_id>)?
        POST /v1/mcp-servers/<mcp_server_id>/(connect|tools/<mcp_tool_id>/(accept|run))
        (GET|PUT) /v1/tools/mcp/servers
        POST /v1/tools/mcp/servers/test
        (PATCH|DELETE) /v1/tools/mcp/servers/<mcp_server_name>
        GET /v1/tools/mcp/servers/<mcp_server_name>/tools
        POST /v1/tools/mcp/servers/<mcp_server_name>/(resync|<mcp_tool_name>|tools/<mcp_tool_name>/execute)
        (GET|POST) /v1/providers/
        POST /v1/providers/(check|<provider_id>/check)
        PATCH /v1/providers/<provider_id>(/refresh)?
        (GET|DELETE) /v1/providers/<provider_id>
    """,
    "archives and blocks of no user are the organization's; a passage is the user's who filed it": """
        (GET|POST) /v1/archives/
        (GET|PATCH|DELETE) /v1/archives/<archive_id>
        (GET|POST) /v1/archives/<archive_id>/(agents|passages|passages/batch)
        (GET|POST) /v1/blocks/
        GET /v1/blocks/count
    """,
    "templates are the organization's, and hold nothing of a user": """
        POST /v1/templates
        (PATCH|DELETE) /v1/templates/<template_name>
        POST /v1/templates/<template_name>/(save|rollback)
        POST /v1/templates/<template_version>/agents
        GET /ui/templates
        POST /ui/templates/<template_name>/(save|rollback|delete)
    """,
    "folders of no user are the organization's": """
        (GET|POST) (/v1/(folders|sources)/|/ui/files)
        GET /v1/(folders|sources)/(count|metadata)
        GET /v1/agents/<agent_id>/(folders|sources|files)
        PATCH /v1/agents/<agent_id>/files/close-all
    """,
    "lists and searches find what the caller may see": """
        GET /v1/(runs|steps|conversations|jobs)/
        GET /v1/(jobs/(active|queue)|runs/active)
        GET /v1/(ledger|users/|identities/(count)?)
        POST /v1/((agents/)?messages|passages)/search
    """,
    "block schemas are files of the server, for every organization": "GET /v1/schemas/(<schema_name>)?",
}
# Routes by which a teacher reads the names of all students, and counts of what they can do.
OF_TEACHERS = ("/{course_name}/students", "/{course_name}/skills")
ORDER = ("GET", "POST", "PUT", "PATCH", "DELETE")


def shared_routes_of_features() -> Iterator[str]:
    """Return the patterns of shared routes that the features list.

    A feature lists them in `SHARED_ROUTES` of its test package.
    """
    for package in walk_packages(features.__path__, "tests.features."):
        if package.ispkg:
            yield getattr(import_module(package.name), "SHARED_ROUTES", "")


ALL_SHARED = re.compile(
    "|".join(
        line.strip()
        for lines in (*SHARED.values(), *shared_routes_of_features())
        for line in lines.strip().splitlines()
    )
)


def is_shared(cell: Cell) -> bool:
    name = f"{cell.method} {cell.path}".replace(":path", "").replace("{", "<").replace("}", ">")
    return ALL_SHARED.fullmatch(name) is not None


def in_order(cells: list[Cell]) -> list[Cell]:
    """Return the cells in a safe order: deletions last, and each detachment before its attachment.

    So a detached object is attached again, and the following calls find it attached.
    """
    # In reverse order, agents and users come after the objects that belong to them.
    places = sorted(cells, key=lambda cell: cell.path, reverse=True)
    return sorted(
        places,
        key=lambda cell: (
            ORDER.index("DELETE" if cell.deletes else cell.method),
            "/detach/" not in cell.path,
            -cell.path.count("{"),
        ),
    )


def her_view(world: World, cells: list[Cell], hers: Mapping[str, str]) -> View:
    """Return the status and the text with which each route that reads Ada's data answers her."""
    own = [
        cell
        for cell in cells
        if cell.method == "GET"
        and any(f"{{{name}" in cell.path for name in world.own)
        and cell.path not in VOLATILE
    ]
    assert len(own) > 30
    found = {}
    for cell in [*own, Cell("GET", "/v1/agents/{agent_id}/messages", ())]:
        answer = cell.ask(world.http, hers, bearer(world.ada))
        found[cell.path] = (answer.status_code, answer.text)
    return found


@pytest.fixture(scope="module")
def view(world: World, cells: list[Cell], hers: dict[str, str]) -> View:
    """Return the answers to Ada before any other caller has made a request."""
    return her_view(world, cells, hers)


# Routes whose answers may differ between two calls, because they show a time or list all agents.
VOLATILE = (
    "/users/{user_id}/export",
    "/users/{user_id}/remotes",
    "/ui/files/{folder_id}",
    "/ui/people/{user_id}/export",
)


def new_agent(world: World, _: Mapping[str, str]) -> dict[str, str]:
    return {
        "agent_id": world.ask(OPERATOR, "POST", "/v1/agents/", json={"model": "scripted/model"})[
            "id"
        ]
    }


def new_archive(world: World, _: Mapping[str, str]) -> dict[str, str]:
    return {
        "archive_id": world.ask(OPERATOR, "POST", "/v1/archives/", json={"name": "Spare"})["id"]
    }


def new_provider(world: World, _: Mapping[str, str]) -> dict[str, str]:
    body = {
        "provider_type": "openai",
        "name": new_id("spare"),
        "api_key": "sk-2",
        "base_url": "http://127.0.0.1:9/v1",
    }
    return {"provider_id": world.ask(OPERATOR, "POST", "/v1/providers/", json=body)["id"]}


def new_tool(world: World, _: Mapping[str, str]) -> dict[str, str]:
    source = f"def {new_id('spare').replace('-', '_')}():\n    'Spare.'"
    return {
        "tool_id": world.ask(OPERATOR, "POST", "/v1/tools/", json={"source_code": source})["id"]
    }


def new_skills(world: World, values: Mapping[str, str]) -> dict[str, str]:
    name = new_id("spare")
    world.new_skill(name, f"agents/{values['agent_id']}/")
    return world.new_skill(name, "")


def new_shared_file(world: World, _: Mapping[str, str]) -> dict[str, str]:
    world.ask(OPERATOR, "PUT", "/v1/workspace/files/spare.txt", content="Spare.")
    return {"shared_path": "spare.txt"}


# Functions that create a new object, by the path parameter that names such an object.
SPARES: dict[str, Callable[[World, Mapping[str, str]], dict[str, str]]] = {
    "group_id": lambda world, values: world.new_group(new_agent(world, values)["agent_id"]),
    "agent_id": new_agent,
    "skill_name": new_skills,
    "archive_id": new_archive,
    "provider_id": new_provider,
    "tool_id": new_tool,
    "shared_path": new_shared_file,
    "mcp_server_id": lambda world, _: world.new_mcp_server(new_id("spare")),
    "mcp_server_name": lambda world, _: world.new_mcp_server(new_id("spare")),
    "variable_id": lambda world, _: world.new_variable(new_id("SPARE").replace("-", "_")),
    "template_name": lambda world, values: world.new_template(new_agent(world, values)["agent_id"]),
    "course_name": lambda world, _: world.new_course(new_id("spare")),
    "task_name": lambda world, values: world.new_task(
        new_id("spare"), new_agent(world, values)["agent_id"]
    ),
}


def spare(world: World, hers: Mapping[str, str], cell: Cell) -> dict[str, str]:
    """Create new objects for the path, so that the call does not delete the shared ones.

    Returns:
        The values of the path's parameters, with the ids of the new objects.
    """
    values = dict(hers)
    for name, make in SPARES.items():
        if re.search(rf"{{{name}[:}}]", cell.path):
            values |= make(world, values)
    return values


ALL_BUT = tuple(sorted(ALL_SCOPES - {IMPERSONATE}))
OTHERS: dict[str, Any] = {
    "another user": lambda world: bearer(world.key("bea", scopes=EVERY_USERS)),
    "a service that names nobody": lambda world: bearer(world.key("clock", "service", ALL_BUT)),
    "a service that acts for another user": lambda world: {
        **bearer(world.key("tutor", "service", (*ALL_BUT, IMPERSONATE))),
        "x-ricordo-user": "bea",
    },
    "a developer": lambda world: bearer(
        world.key("dora", "developer", tuple(sorted(ALL_SCOPES - {IMPERSONATE, "memory:read"})))
    ),
}


# Pages on which a person chooses or chats. They may refuse a service, even with the scope.
A_PERSONS = re.compile(
    r"/ui/(notifications|first|say|learning|skills)|/ui/agents/\{agent_id\}/chat(/\w+)?"
)


def callers_by_name_and_id() -> list[Any]:
    """Return a test parameter for every caller in OTHERS and every way to name Ada.

    The ways are her name and her id. In the suite each caller uses only one of them.
    """
    by_name = {"another user": False, "a developer": False}
    short = [pytest.param(kind, by_name.get(kind, True), False, id=kind) for kind in OTHERS]
    return short + [
        pytest.param(
            kind,
            by_id,
            True,
            id=f"{kind}-{'by id' if by_id else 'by name'}",
            marks=pytest.mark.soak,
        )
        for kind in OTHERS
        for by_id in (False, True)
    ]


@pytest.mark.parametrize(("kind", "names_by_id", "is_whole"), callers_by_name_and_id())
def test_a_users_data_is_refused_to_other_users_whatever_their_scopes(
    kind: str,
    names_by_id: bool,
    is_whole: bool,
    world: World,
    cells: list[Cell],
    watch: Watch,
    hers: dict[str, str],
    view: View,
) -> None:
    world.key("bea", scopes=EVERY_USERS)  # otherwise the first request creates the user
    headers = OTHERS[kind](world)
    if names_by_id:
        hers = {**hers, "user_id": world.id_of("ada"), "block_label": "notes"}
    shared = [cell for cell in cells if is_shared(cell)]
    # The audit log needs the scope `admin`, which some of these callers have.
    # `tests/features/operations/audit_log` tests it.
    others = [cell for cell in cells if not is_shared(cell) and "/audit-log" not in cell.path]
    if kind == "a developer":  # test_teachers.py tests teachers
        taught = [cell for cell in others if cell.path.endswith(OF_TEACHERS)]
        shared, others = [*shared, *taught], [cell for cell in others if cell not in taught]
    # In the short form, only "another user" calls every route.
    is_quick = not is_whole and kind != "another user"
    require_refused(world, watch, others[::FEW] if is_quick else others, (403, 404), headers, hers)
    for cell in in_order(shared if is_whole else asked_once(shared, kind)):
        answer = cell.ask(world.http, spare(world, hers, cell) if cell.deletes else hers, headers)
        require_silent(world, cell, answer)
        is_hers = names_by_id and "block_label" in cell.path
        is_makers = (
            " user created this archive" in answer.text and cell.path == "/v1/archives/{archive_id}"
        )
        is_persons = kind.startswith("a service") and A_PERSONS.fullmatch(cell.path)
        if "lacks the scope" in answer.text or is_makers or is_persons:
            continue
        assert (answer.status_code in REFUSED) == is_hers, (cell, answer.text)
        assert answer.status_code != 422, (cell, answer.text)
    # The calls above must not have changed Ada's data. This check is costly. In the short form it
    # is skipped for callers that name her by id, since they call no shared route.
    if is_whole or not names_by_id:
        assert her_view(world, cells, world.shared | world.own) == view


def asked_once(shared: list[Cell], kind: str) -> list[Cell]:
    """Return the shared routes that this caller calls in the short form.

    Each route is called by one caller. This is another user if a user's key can have the route's
    scopes, or else a developer. The services call none, since they get the same responses as those
    two. In the long form every caller calls every route.
    """
    by_a_user = {
        cell
        for cell in shared
        if {*cell.scopes} <= {*EVERY_USERS} and not cell.path.endswith(OF_TEACHERS)
    }
    chosen = {"another user": by_a_user, "a developer": {*shared} - by_a_user}.get(kind, set())
    return [cell for cell in shared if cell in chosen]


def test_a_first_write_to_another_users_memory_creates_nothing(world: World, watch: Watch) -> None:
    edit = {"old_string": "", "new_string": "New.", "reasoning": ""}
    callers = {kind: headers(world) for kind, headers in OTHERS.items()}
    assert world.key("bea", scopes=EVERY_USERS)  # otherwise the first request creates the user
    watch.changes()
    for kind, headers in callers.items():
        for name in ("newcomer", new_id("user")):
            proposed = world.http.post(
                f"/users/{name}/blocks/notes/propose", json=edit, headers=headers
            )
            put = world.http.put(
                f"/users/{name}/blocks/notes", json={"body": "New."}, headers=headers
            )
            assert {proposed.status_code, put.status_code} <= {403, 404}, (
                kind,
                proposed.text,
                put.text,
            )
    assert watch.changes() == []


SAID = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
# Requests by Bea that name Ada or her objects. The name is in the body, in the query, or at the end
# of a path that begins with something that Bea may use.
NAMED_ELSEWHERE: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/agents/", {"json": {"model": "scripted/model", "block_ids": ["{block_id}"]}}),
    ("POST", "/v1/agents/", {"json": {"model": "scripted/model", "user_id": "ada"}}),
    ("POST", "/v1/agents/", {"json": {"model": "scripted/model", "user_id": "{ada_id}"}}),
    ("PATCH", "/v1/agents/{agent_id}", {"json": {"block_ids": ["{block_id}"]}}),
    ("POST", "/v1/agents/", {"json": {"model": "scripted/model", "folder_ids": ["{folder_id}"]}}),
    ("PATCH", "/v1/agents/{agent_id}", {"json": {"source_ids": ["{folder_id}"]}}),
    ("POST", "/v1/folders/", {"json": {"name": "x", "user": "ada"}}),
    ("POST", "/v1/folders/", {"json": {"name": "x", "user": "{ada_id}"}}),
    ("PATCH", "/v1/agents/{agent_id}/core-memory/blocks/attach/{block_id}", {}),
    ("POST", "/v1/agents/{agent_id}/messages/cancel", {"json": {"run_ids": ["{run_id}"]}}),
    (
        "POST",
        "/v1/agents/{agent_id}/messages/import",
        {"json": {"messages": SAID["messages"], "conversation_id": "{conversation_id}"}},
    ),
    ("POST", "/v1/messages/search", {"json": {"query": "zebra", "user_id": "ada"}}),
    ("POST", "/v1/agents/messages/search", {"json": {"query": "zebra", "user_id": "{ada_id}"}}),
    ("POST", "/v1/passages/search", {"json": {"query": "zebra", "user_id": "ada"}}),
    (
        "POST",
        "/v1/conversations/",
        {"params": {"agent_id": "{agent_id}"}, "json": {"user_id": "ada"}},
    ),
    (
        "POST",
        "/v1/conversations/",
        {"params": {"agent_id": "{agent_id}"}, "json": {"user_id": "{ada_id}"}},
    ),
    (
        "POST",
        "/v1/conversations/default/fork",
        {"params": {"agent_id": "{agent_id}", "message_id": "{message_id}"}},
    ),
    ("GET", "/v1/agents/{agent_id}/context", {"params": {"conversation_id": "{conversation_id}"}}),
    ("GET", "/v1/agents/{agent_id}/messages", {"params": {"conversation_id": "{conversation_id}"}}),
    ("POST", "/v1/conversations/{conversation_id}/stream", {"json": {"run_id": "{run_id}"}}),
    ("POST", "/users/bea/diffs/approve", {"json": {"ids": ["{diff_id}"]}}),
    ("POST", "/users/bea/diffs/reject", {"json": {"ids": ["{diff_id}"]}}),
    ("POST", "/users/bea/blocks/notes/diffs/{diff_id}/approve", {"json": {}}),
    ("POST", "/users/bea/runs/{run_id}/undo", {}),
    ("POST", "/users/bea/blocks/notes/restore", {"json": {"sha": "{sha}"}}),
    ("GET", "/users/bea/blocks/notes/versions/{sha}", {}),
    ("POST", "/users/bea/remotes/{remote_id}/follow", {}),
    ("DELETE", "/users/bea/remotes/{remote_id}", {}),
    ("PUT", "/users/bea/remotes", {"json": {"kind": "git", "address": "{remotes}/vuqkzoqada.git"}}),
    (
        "PUT",
        "/users/bea/remotes",
        {"json": {"kind": "git", "address": "{remotes}/../remotes/vuqkzoqada.git"}},
    ),
]


def test_ids_of_another_users_data_in_bodies_and_queries_are_refused(
    world: World, cells: list[Cell], watch: Watch, hers: dict[str, str]
) -> None:
    bea = bearer(world.key("bea", scopes=EVERY_USERS))
    world.http.put("/users/bea/blocks/notes", json={"body": "Mine."}, headers=bea)
    world.http.post(f"/v1/agents/{hers['agent_id']}/messages", json=SAID, headers=bea)
    values = {**hers, "ada_id": world.ada_id}
    for method, path, given in NAMED_ELSEWHERE:
        cell = Cell(method, path, ())
        watch.changes()
        answer = world.http.request(method, fill(path, values), **fill(given, values), headers=bea)
        # These routes take a list, and return 200 with the outcome of each item.
        is_listed = answer.status_code == 200 and path.endswith(
            ("/cancel", "diffs/approve", "diffs/reject")
        )
        assert is_listed or answer.status_code in (400, 403, 404, 409), (path, given, answer.text)
        assert not is_listed or '"failed"' in answer.text, answer.text
        require_silent(world, cell, answer)
        assert watch.changes() == [], (path, given)
    document = world.server.app.openapi()["paths"]
    for cell in cells:
        operation = document.get(re.sub(":path}", "}", cell.path), {}).get(cell.method.lower(), {})
        if "user_id" in [
            one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"
        ]:
            for name in ("ada", values["ada_id"]):
                asked = cell.parts(hers)
                asked["params"] = {**asked["params"], "user_id": name}
                answer = world.http.request(**asked, headers=bea)
                assert answer.status_code in (403, 404), (cell, answer.text)
                require_silent(world, cell, answer)
    assert watch.changes() == []


def test_another_organization_reads_and_changes_nothing(
    world: World, cells: list[Cell], watch: Watch, hers: dict[str, str], view: View
) -> None:
    boss = bearer(world.key("boss", "admin", tuple(sorted(ALL_SCOPES)), OTHER_ORGANIZATION))
    hers = {**hers, "user_id": world.id_of("ada")}
    elsewhere = re.compile("GET /v1/(models|tools)/.*|(GET|POST|PUT) [^{]*|PATCH /v1/notifications")
    free = [
        cell
        for cell in cells
        if cell.path.startswith(
            ("/v1/schemas/", "/v1/workspace/", "/v1/skills/", "/ui/skills/")
        )  # schemas belong to the server; each organization has a shared workspace and skills
        or (elsewhere.fullmatch(f"{cell.method} {cell.path}") and "{" not in cell.path)
    ]
    require_refused(world, watch, [cell for cell in cells if cell not in free], (404,), boss, hers)
    told_to_all = {
        "persona",
        *(
            hers[name]
            for name in (
                "tool_name",
                "mcp_url",
                "mcp_server_name",
                "mcp_tool_name",
                "shared_path",
                "tag",
                "skill_name",
            )
        ),
    }
    secrets = {*world.shared.values(), *world.secrets} - told_to_all
    for cell in free:
        answer = cell.ask(world.http, hers, boss)
        told = all_text(answer)
        asked_for = str(answer.request.url) + str(answer.request.content)
        assert [secret for secret in secrets if secret in told and secret not in asked_for] == [], (
            cell,
            told[:500],
        )
        assert answer.status_code != 422, (cell, answer.text)
    assert her_view(world, cells, world.shared | world.own) == view


@pytest.mark.parametrize("is_whole", short_and_long(False, True))
def test_the_same_requests_succeed_for_callers_with_the_rights(
    is_whole: bool, world: World, cells: list[Cell], hers: dict[str, str], view: View
) -> None:
    """Every route works with these ids and bodies, so they did not cause the refusals above.

    The short form leaves out routes that other tests of this module called successfully: those for
    shared data, and most of the routes by which Ada reads.
    """
    seen = {path for path, (status, _) in view.items() if status not in REFUSED}
    answered = {
        cell for cell in cells if is_shared(cell) or (cell.method == "GET" and cell.path in seen)
    }
    asked = cells if is_whole else [cell for cell in cells if cell not in answered]
    for cell in in_order(
        [cell for cell in asked if (cell.method, cell.path) not in ALWAYS_REFUSED]
    ):
        is_hers = (
            any(re.search(rf"{{{name}[:}}]", cell.path) for name in world.own)
            and "/identities/" not in cell.path
        )
        is_page = cell.path.startswith("/ui/")
        # Two routes delete such an object, so each of them gets a new one.
        is_twice = is_page or "/tools/mcp/" in cell.path or "{task_name}" in cell.path
        given = spare(world, hers, cell) if is_twice and cell.deletes else hers
        if cell.deletes and "{folder_id}" in cell.path:
            given, is_hers = {**hers, **world.new_folder(new_id("spare"))}, False
        if cell.scopes == ("users:write",):
            is_hers = False  # for administrators, even if the path names a user
        if "{course_name}/students" in cell.path:
            given, is_hers = {**hers, **world.new_student()}, False
        if is_page and "{backup_name}" in cell.path:
            given = {**hers, **world.new_backup("spare.db")}
        if is_page and "{scheduled_message_id}" in cell.path:
            given = {**hers, **world.new_schedule(world.ada)}
        if is_page and "{file_path" in cell.path:
            given = {**hers, **world.new_file("spare.txt")}
        if "{skill_name}" in cell.path:
            given = {**hers, **world.new_skill_proposal(cell.path, hers)}
            is_hers = "{user_id}" in cell.path
        if is_page and "/forget-one" in cell.path:
            given = {**hers, **world.new_forget_request("Spare.")}
        if is_page and "{passage_id}" in cell.path:
            home = fill("/v1/agents/{agent_id}/archival-memory", hers)
            given = {
                **hers,
                "passage_id": world.ask(world.ada, "POST", home, json={"text": "Spare."})[0]["id"],
            }
        answer = cell.ask(world.http, given, bearer(world.ada if is_hers else OPERATOR))
        assert answer.status_code not in (*REFUSED, 405, 422), (cell, answer.text)
        # Ada may use the agent again only after this identity is detached.
        if cell.path == "/v1/agents/{agent_id}/identities/attach/{identity_id}":
            detach = Cell("PATCH", cell.path.replace("attach", "detach"), ())
            detach.ask(world.http, hers, bearer(OPERATOR))


def test_defining_a_route_without_a_scope_fails() -> None:
    with pytest.raises(TypeError, match="needs a scope"):
        Routes(prefix="/v1/new").get("/")(lambda: None)


def test_defining_a_route_with_a_plain_function_without_a_context_fails() -> None:
    """A plain function runs in a transaction, which needs the context.

    Such a route was accepted before, and failed at its first request.
    """
    routes = Routes(prefix="/v1/new", scope="agents")

    def alone() -> None: ...
    def with_transaction(tx: Any) -> None: ...
    def with_day(tx: Any, day: str) -> None: ...
    def with_context(tx: Any, context: RequestContext) -> None: ...

    for function in (alone, with_transaction, with_day):
        with pytest.raises(TypeError, match="write it as `async def`"):
            routes.get("/")(function)
    routes.get("/")(with_context)
