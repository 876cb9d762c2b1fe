"""Every method of the installed `letta-client`, on a server with one of everything.

The client is in strict mode. The test makes docs/develop/compatibility.md: `python -m
tests.api.test_wire_gate` writes the page, and a test checks that it is current.
"""

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import letta_client
import pytest
from letta_client import APIError, NotFoundError
from letta_client._resource import SyncAPIResource

from ricordo.api.call import IGNORED_QUERIES
from ricordo.api.models.agents import AgentUpdate
from ricordo.api.models.base import RequestPart
from ricordo.api.models.memory import BlockUpdate
from ricordo.api.models.turns import SendRequest
from ricordo.api.search import MessageSearchRequest
from ricordo.app import create_app
from ricordo.domain.message import TextPart
from ricordo.features.custom_tools.source.models import ToolCreateRequest
from ricordo.features.files.folders.models import FolderRequest
from ricordo.features.identity.accounts.identities import IdentityUpdate
from ricordo.llm.scripted import call
from ricordo.settings import ProviderSettings, Settings
from tests.api.conftest import Api
from tests.api.test_openapi import operations, routes_of_the_client
from tests.behaviour.test_youlab_endpoints import ENDPOINTS
from tests.seams.http import ok
from tests.seams.mcp import mcp_server, notes
from tests.seams.server import MODEL

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop" / "compatibility.md"
OLDER = ROOT / "tests" / "fixtures" / "client_routes.txt"
# These methods are served, but their only possible response is an error.
NOT_THERE = {"environments.retrieve", "environments.send_message"}
TOOL = (
    'def double(one: int) -> int:\n    """Double.\n\n    Args:\n        one: A number.\n    """\n '
    "   return 2 * one\n"
)
SAID = [{"role": "user", "content": "Hello."}]
WEEKLY = {"type": "recurring", "cron_expression": "0 8 * * 1"}


def methods(resource: Any, path: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return every method of the client by name: `agents.blocks.attach`."""
    for name in sorted(dir(type(resource))):
        if name.startswith(("_", "with_")):
            continue
        if inspect.isfunction(inspect.getattr_static(type(resource), name)):
            if path:
                yield f"{path}.{name}", getattr(resource, name)
        elif isinstance(child := getattr(resource, name, None), SyncAPIResource):
            yield from methods(child, f"{path}.{name}".lstrip("."))


class Seeded:
    """One of everything, and second objects for methods that delete or detach."""

    def __init__(self, api: Api, mcp_url: str) -> None:
        self.api, self.client, self.mcp_url, self.number = api, api.client, mcp_url, 0
        tool = self.client.tools.upsert(source_code=TOOL)
        agent = self.client.agents.create(
            model=MODEL, tool_ids=[tool.id], memory_blocks=[{"label": "human", "value": "Ada."}]
        )
        api.server.says("Hello.")
        run_id = (
            self.client.agents.messages.create(agent.id, input="Hello.").usage.run_ids or [""]
        )[0]
        thread = self.client.conversations.create(agent_id=agent.id)
        api.server.says("Hello.")
        list(self.client.conversations.messages.create(thread.id, messages=SAID))  # type: ignore[arg-type]
        server = self.client.mcp_servers.create(
            server_name="gate", config={"mcp_server_type": "streamable_http", "server_url": mcp_url}
        )
        api.server.says("Hello.")
        recorded = list(
            self.client.agents.messages.create(
                agent.id, input="Go.", streaming=True, background=True
            )
        )
        self.values: dict[str, Any] = {
            "agent_id": agent.id,
            "tool_id": tool.id,
            "tool_name": "double",
            "block_id": agent.blocks[0].id,
            "block_label": "human",
            "conversation_id": thread.id,
            "run_id": run_id,
            "path_run_id": next(one.run_id for one in recorded if getattr(one, "run_id", None)),
            "step_id": self.client.runs.steps.list(run_id).items[0].id,
            "message_id": self.client.agents.messages.list(agent.id).items[-1].id,
            "mcp_server_id": server.id,
            "device_id": "device-1",
            "connection_id": "connection-1",
            "messages": SAID,
            "query": "Ada",
            "text": "Ada likes tea.",
            "name": "Notes",
            "label": "notes",
            "value": "None.",
            "source_code": TOOL,
            "body_requires_approval": False,
            "passages": [{"text": "One."}],
            "server_name": "another",
            "config": {"mcp_server_type": "streamable_http", "server_url": mcp_url},
            "file": ("notes.txt", b"A note."),
            "hostname": "https://app.example.org",
            "policy": [{"type": "agent", "id": agent.id, "access": ["read_agent"]}],
        }
        self.values |= {
            "archive_id": self.client.archives.create(name="Notes").id,
            "folder_id": self._folder(),
        }
        self.values["file_id"] = self._file()
        self.values["template_name"] = self.client.templates.create(
            agent_id=agent.id, type="agent"
        ).name
        self.values["template_version"] = f"{self.values['template_name']}:latest"

    def _next(self) -> str:
        self.number += 1
        return f"gate{self.number}"

    def _folder(self) -> str:
        return str(self.client.folders.create(name=self._next()).id)

    def _file(self) -> str:
        name = (f"{self._next()}.txt", b"A note.")
        file = self.client.folders.files.upload(self.values["folder_id"], file=name)
        place = f"/v1/folders/{self.values['folder_id']}/files/{file.id}"
        while ok(self.api.http.get(place))["processing_status"] not in ("completed", "error"):
            pass
        return str(file.id)

    def _identity(self) -> str:
        body = {"name": "Ada", "identifier_key": self._next(), "identity_type": "user"}
        return str(ok(self.api.http.post("/v1/identities/", json=body))["id"])

    def _fresh(self, name: str, values: dict[str, Any]) -> dict[str, Any]:  # noqa: C901, PLR0911 - a table
        """Return arguments for this method alone: an object to delete, attach or wait for."""
        make, agent = self.client, self.values["agent_id"]
        match name:
            case "agents.delete" | "agents.messages.reset":
                return {"agent_id": make.agents.create(model=MODEL).id}
            case "tools.delete":
                return {
                    "tool_id": make.tools.create(
                        source_code=TOOL.replace("double", self._next())
                    ).id
                }
            case "blocks.delete" | "agents.blocks.attach" | "agents.blocks.detach":
                block = make.blocks.create(label=self._next(), value="").id
                if name.endswith("detach"):
                    make.agents.blocks.attach(block, agent_id=agent)
                return {"block_id": block}
            case "access_tokens.delete":
                made = make.access_tokens.create(
                    hostname=values["hostname"], policy=values["policy"]
                )
                return {"token": made.token}
            case "archives.delete":
                return {"archive_id": make.archives.create(name="Old").id}
            case "archives.passages.delete":
                return {
                    "passage_id": make.archives.passages.create(
                        values["archive_id"], text="Old."
                    ).id
                }
            case "agents.passages.delete":
                return {"memory_id": make.agents.passages.create(agent, text="Old.")[0].id}
            case "conversations.delete":
                return {"conversation_id": make.conversations.create(agent_id=agent).id}
            case "folders.delete":
                return {"folder_id": self._folder()}
            case "folders.create":
                return {"name": self._next()}
            case "folders.files.delete":
                return {"file_id": self._file()}
            case "mcp_servers.delete":
                made = make.mcp_servers.create(server_name=self._next(), config=values["config"])
                return {"mcp_server_id": made.id}
            case "mcp_servers.tools.retrieve" | "mcp_servers.tools.run":
                tool = make.mcp_servers.tools.list(self.values["mcp_server_id"])[0]
                return {"tool_id": tool.id}
            case "agents.identities.attach" | "agents.identities.detach":
                # Once an agent has identities, only they may use it. So this is a separate agent.
                return {
                    "agent_id": make.agents.create(model=MODEL).id,
                    "identity_id": self._identity(),
                }
            case "agents.import_file":
                return {"file": ("agent.af", make.agents.export_file(agent).encode())}
            case "templates.create":
                return {"agent_id": agent, "type": "agent"}
            case "templates.delete":
                return {"template_name": make.templates.create(agent_id=agent, type="agent").name}
            case "templates.rollback":
                return {"version": "1"}
            case "templates.update":
                return {"agent_file_json": json.loads(make.agents.export_file(agent))}
            case "agents.tools.run":
                return {"args": {"one": 2}}
            case "agents.messages.cancel" | "conversations.cancel":
                return {}
            case (
                "agents.messages.create" | "agents.messages.stream" | "agents.messages.create_async"
            ):
                return {"input": "Hello."}
            case "conversations.messages.create":
                return {"messages": SAID}
            case "agents.schedule.create":
                return {"schedule": WEEKLY}
            case "agents.schedule.retrieve" | "agents.schedule.delete":
                made = make.agents.schedule.create(agent, messages=SAID, schedule=WEEKLY)  # type: ignore[arg-type]
                return {"scheduled_message_id": made.id}
            case "steps.feedback.create":
                return {"feedback": "positive"}
            case "tools.create":
                return {"source_code": TOOL.replace("double", self._next())}
        return {}

    def prepare(self, name: str) -> None:
        """Prepare the server for a call of this method."""
        agent = self.values["agent_id"]
        if name.endswith("messages.compact"):
            for number in range(3):
                self.api.server.says(f"Answer {number}.")
                thread = (
                    {"conversation_id": self.values["conversation_id"]}
                    if name.startswith("conv")
                    else None
                )
                body = {"messages": SAID, "streaming": False}
                path = (
                    f"/v1/conversations/{thread['conversation_id']}"
                    if thread
                    else f"/v1/agents/{agent}"
                )
                ok(self.api.http.post(f"{path}/messages", json=body))
            self.api.server.says("They talked.")
        elif name.startswith(
            ("agents.messages.create", "agents.messages.stream", "conversations.messages.create")
        ):
            self.api.server.says((TextPart("One moment."), call("double", one=2)), "Four.")
        elif name.startswith("agents.files.") or name in (
            "agents.folders.detach",
            "folders.agents.list",
        ):
            self.client.agents.folders.attach(self.values["folder_id"], agent_id=agent)
        elif name == "conversations.messages.stream":
            self.api.server.says("Hello.")
            body = {"messages": SAID, "streaming": True, "background": True}
            self.api.http.post(
                f"/v1/conversations/{self.values['conversation_id']}/messages", json=body
            ).raise_for_status()
        elif name.startswith("agents.tools."):
            self.client.agents.tools.attach(self.values["tool_id"], agent_id=agent)
        elif name == "agents.archives.detach":
            self.client.agents.archives.attach(self.values["archive_id"], agent_id=agent)

    def call(self, name: str, method: Callable[..., Any]) -> None:
        """Call the method with its arguments, and read the whole response."""
        # Wait for the run of a message that was sent without waiting.
        while ok(self.api.http.get("/v1/runs/", params={"active": True})):
            pass
        self.prepare(name)
        values = dict(self.values)
        fresh = self._fresh(name, values)
        values |= fresh
        if name == "agents.identities.detach":
            self.client.agents.identities.attach(values["identity_id"], agent_id=values["agent_id"])
        needed = [
            parameter.name
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is inspect.Parameter.empty
            and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        answer = method(**{one: values[one] for one in needed} | fresh)
        if (
            not isinstance(answer, str | bytes | dict)
            and hasattr(answer, "__iter__")
            and not hasattr(type(answer), "model_fields")
        ):
            list(answer)


# Nothing runs that could be cancelled, so the client raises the server's error.
CONFLICTS = {"agents.messages.cancel", "conversations.cancel"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_method_of_the_official_client_can_read_its_response(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("allow_private_providers", True), ("traces", "all")):
        monkeypatch.setattr(api.server.runtime.settings, name, value)
    with mcp_server(notes()) as url:
        seeded = Seeded(api, url)
        found = dict(methods(api.client))
        assert len(found) == 128
        assert set(found) >= NOT_THERE | CONFLICTS
        failed: dict[str, str] = {}
        for name, method in found.items():
            try:
                seeded.call(name, method)
            except NotFoundError as error:
                if name not in NOT_THERE or "There is no environment" not in str(error):
                    failed[name] = str(error)
            except APIError as error:
                if name not in CONFLICTS or "No active runs to cancel" not in str(error):
                    failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        assert failed == {}


def served() -> set[str]:
    """The routes of this server as `method path`, names of parameters left out."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder)), ProviderSettings.model_construct())
        return {
            f"{method} {re.sub(r'{[^}]*}', '{}', path)}"
            for method, path, _ in operations(app.openapi())
        }


def routes_by_version() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in OLDER.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            method, path, *versions = line.split()
            for version in versions:
                found.setdefault(version, set()).add(f"{method} {path}")
    found[letta_client.__version__] = {" ".join(route) for route in routes_of_the_client()}
    return found


def page() -> str:
    """Return the text of docs/develop/compatibility.md."""
    here, versions = served(), routes_by_version()
    rows = "\n".join(
        f"| {name} | {len(routes & here)} of {len(routes)} |"
        for name, routes in sorted(versions.items(), key=_order)
    )
    missing = sorted(
        set().union(*versions.values()) - here, key=lambda route: (route.split()[1], route)
    )
    assert not missing, missing
    ignored = "\n".join(f"| `{name}` | {why} |" for name, why in IGNORED_QUERIES.items())
    fields = "\n".join(
        f"| {where} | {', '.join(f'`{name}`' for name in names)} | {why} |"
        for where, model in BODIES.items()
        for why, names in _by_reason(model.ignored).items()
    )
    youlab = "\n".join(
        f"- `{route}`" for route in sorted(ENDPOINTS, key=lambda route: (route.split()[1], route))
    )
    return PAGE_TEXT.format(rows=rows, ignored=ignored, fields=fields, youlab=youlab)


BODIES: dict[str, type[RequestPart]] = {
    "an agent": AgentUpdate,
    "what is sent to an agent": SendRequest,
    "a block": BlockUpdate,
    "a tool": ToolCreateRequest,
    "a folder": FolderRequest,
    "an identity": IdentityUpdate,
    "a search": MessageSearchRequest,
}


def _by_reason(ignored: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of the ignored fields, grouped by reason."""
    fields: dict[str, list[str]] = {}
    for name, why in ignored.items():
        fields.setdefault(why, []).append(name)
    return fields


def _order(item: tuple[str, set[str]]) -> tuple[int, ...]:
    return tuple(map(int, item[0].split(".")))


PAGE_TEXT = """# Compatibility

Ricordo answers the REST API of the retired Letta V1 server 0.16.8, so that programs with `letta-client` run unchanged: set
`base_url` to this server. Each method of the newest client is called in a test, with the client's strict reading of answers on.

| `letta-client` | routes served |
|---|---|
{rows}

All these routes also exist below `/latest`. The server has further routes of its own: `/openapi.json` lists all.

A request for a route that no client knows is answered with 404 and a sentence that names this page.
`/v1/environments` is served as an empty list: tools run in the sandbox of this server.

## Parameters of no effect

The server accepts a parameter that a client documents even if it can have no effect here. The header `X-Ricordo-Warnings` of the
answer then names the parameter and the reason: `project_id: Everything is in one project.` A client may also send an object back
as it was answered: fields that only answers have, such as `created_by_id`, change nothing. A parameter or field that no client
knows is refused with 422, and the answer names it.

These are accepted in any query:

| parameter | why |
|---|---|
{ignored}

These are accepted in bodies:

| where | field | why |
|---|---|---|
{fields}

## Programs of the YouLab tutor

The endpoints of YouLab's first server are served; they are listed below. These of its settings
are accepted, each with a warning that says its new name: `RALPH_OPENROUTER_API_KEY`, `RALPH_OPENROUTER_MODEL`,
`RALPH_OPENWEBUI_URL`, `RALPH_OPENWEBUI_API_KEY`, `RALPH_HONCHO_WORKSPACE_ID`, `RALPH_HONCHO_ENVIRONMENT` and
`RALPH_HONCHO_API_KEY`. `RALPH_USER_DATA_DIR`, `RALPH_AGENT_WORKSPACE` and those that begin with `RALPH_DOLT_` have no
effect; a warning for each says what replaces it.

{youlab}
"""


def test_the_compatibility_page_is_up_to_date() -> None:
    if PAGE.read_text("utf-8") != page():
        pytest.fail(
            "docs/develop/compatibility.md is out of date: python -m tests.api.test_wire_gate"
        )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
