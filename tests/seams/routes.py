"""Every route of the app as a valid request.

Requests are made from the path and the schema of the body, and from tables of values that no schema
gives.
"""

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI

from ricordo.api.routing import GuardedRoute

TEXT = [{"role": "user", "content": "Hello."}]
WANTED = b"multi_ack_detailed side-band-64k thin-pack ofs-delta no-progress\n"
FETCH = b"%04xwant {sha} %b00000009done\n" % (4 + 46 + len(WANTED), WANTED)
COMMAND = b"0" * 40 + b" " + b"4" * 40 + b" refs/heads/main\0 report-status\n"
PUSH = b"%04x" % (len(COMMAND) + 4) + COMMAND + b"0000"
# Bodies for which a schema's required fields are not enough, or that name Ada's data.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/keys/"): {"user": "eve"},
    ("POST", "/v1/users/"): {"name": "new"},
    ("POST", "/v1/invitations"): {"people": [{"name": "invited"}]},
    ("POST", "/v1/identities/"): {
        "name": "new",
        "identifier_key": "new-1",
        "identity_type": "user",
    },
    ("PUT", "/v1/identities/"): {"name": "new", "identifier_key": "new-2", "identity_type": "user"},
    ("POST", "/v1/organizations/"): {"name": "new"},
    ("POST", "/v1/agents/{agent_id}/generate"): {"prompt": "Hello."},
    ("POST", "/v1/agents/"): {"model": "scripted/model", "name": "Mine"},
    ("POST", "/v1/agents/{agent_id}/messages"): {"messages": TEXT},
    ("POST", "/v1/agents/{agent_id}/messages/stream"): {"messages": TEXT},
    ("POST", "/v1/agents/{agent_id}/messages/preview-raw-payload"): {"messages": TEXT},
    ("POST", "/v1/agents/{agent_id}/messages/async"): {"messages": TEXT},
    ("POST", "/v1/client-side-access-tokens"): {
        "hostname": "https://app.example.org",
        "policy": [{"type": "agent", "id": "{agent_id}", "access": ["read_agent"]}],
    },
    ("POST", "/v1/agents/{agent_id}/messages/import"): {
        "messages": TEXT,
        "conversation_id": "{conversation_id}",
    },
    ("POST", "/v1/conversations/{conversation_id}/messages"): {
        "messages": TEXT,
        "streaming": False,
    },
    ("POST", "/v1/messages/search"): {
        "query": "vuqkzoqada",
        "conversation_id": "{conversation_id}",
    },
    ("POST", "/v1/agents/messages/search"): {"query": "vuqkzoqada", "agent_id": "{agent_id}"},
    ("POST", "/v1/passages/search"): {"query": "vuqkzoqada", "agent_id": "{agent_id}"},
    ("POST", "/v1/agents/{agent_id}/a2a"): {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "1", "parts": [{"text": "Hello."}]}},
    },
    ("POST", "/v1/agents/{agent_id}/ag-ui"): {"threadId": "mine", "runId": "1", "messages": TEXT},
    ("POST", "/v1/chat/completions"): {"model": "{agent_id}", "messages": TEXT},
    ("POST", "/v1/chat/completions/chat/completions"): {"model": "{agent_id}", "messages": TEXT},
    ("POST", "/v1/voice-beta/{agent_id}/chat/completions"): {"messages": TEXT},
    ("POST", "/v1/groups/"): {"agent_ids": ["{agent_id}"], "description": "Mine."},
    ("POST", "/v1/groups/{group_id}/messages"): {"messages": TEXT},
    ("POST", "/v1/groups/{group_id}/messages/stream"): {"messages": TEXT},
    ("POST", "/v1/groups/{group_id}/messages/async"): {"messages": TEXT},
    ("PATCH", "/v1/agents/{agent_id}/sleeptime"): {"paused": True},
    ("POST", "/v1/responses"): {"model": "{agent_id}", "input": "Hello."},
    ("POST", "/v1/agents/{agent_id}/schedule"): {
        "messages": TEXT,
        "schedule": {"type": "recurring", "cron_expression": "0 8 * * 1"},
    },
    ("POST", "/v1/messages/batches"): {"requests": [{"agent_id": "{agent_id}", "input": "Hello."}]},
    ("POST", "/mcp"): {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    ("POST", "/v1/embeddings"): {"model": "scripted/embedder", "input": "Hello."},
    ("PATCH", "/v1/blocks/{block_id}"): {"value": "Mine."},
    ("POST", "/v1/blocks/{block_id}/restore"): {"sha": "{sha}"},
    ("PATCH", "/v1/agents/{agent_id}/core-memory/blocks/{block_label:path}"): {"value": "Mine."},
    ("PATCH", "/v1/conversations/{conversation_id}"): {"summary": "Mine."},
    ("PATCH", "/v1/steps/{step_id}/feedback"): {"feedback": "positive"},
    ("PATCH", "/v1/agents/{agent_id}/budget"): {"daily_tokens": 1_000_000},
    ("POST", "/v1/archives/{archive_id}/passages/batch"): {"passages": [{"text": "Mine."}]},
    ("POST", "/v1/tools/"): {"source_code": "def mine():\n    'Mine.'"},
    ("PUT", "/v1/tools/"): {"source_code": "def mine():\n    'Mine.'"},
    ("POST", "/v1/tools/run"): {"source_code": "def mine():\n    'Mine.'"},
    ("POST", "/v1/sandbox-config/{sandbox_config_id}/environment-variable"): {
        "key": "MINE",
        "value": "mine",
    },
    ("POST", "/v1/mcp-servers/"): {
        "server_name": "mine",
        "config": {"mcp_server_type": "streamable_http", "server_url": "{mcp_url}"},
    },
    ("PUT", "/v1/tools/mcp/servers"): {
        "server_name": "by-name",
        "type": "streamable_http",
        "server_url": "{mcp_url}",
    },
    ("POST", "/v1/tools/mcp/servers/test"): {
        "server_name": "x",
        "type": "streamable_http",
        "server_url": "{mcp_url}",
    },
    ("POST", "/v1/templates"): {"type": "agent", "agent_id": "{agent_id}"},
    ("PATCH", "/v1/templates/{template_name}"): {
        "agent_file_json": {
            "agents": [{"id": "agent-0", "name": "Mine", "model": "scripted/model"}]
        }
    },
    ("POST", "/v1/templates/{template_name}/rollback"): {"version": "1"},
    ("POST", "/v1/providers/"): {"provider_type": "openai", "name": "new", "api_key": "sk-1"},
    ("POST", "/v1/providers/check"): {
        "provider_type": "openai",
        "api_key": "sk-1",
        "base_url": "http://127.0.0.1:9",
    },
    **{
        (method, f"/v1/{owner}skills/{{skill_name}}"): body
        for owner in ("users/{user_id}/", "agents/{agent_id}/", "")
        for method, body in (
            ("PUT", {"content": "---\nname: {skill_name}\ndescription: Mine.\n---\nMine.\n"}),
            ("PATCH", {"policy": "propose"}),
        )
    },
    **{
        ("POST", f"/v1/{owner}skills/{{skill_name}}/restore"): {"sha": "{sha}"}
        for owner in ("users/{user_id}/", "agents/{agent_id}/", "")
    },
    ("PUT", "/users/{user_id}/blocks/{label:path}"): {"body": "Mine.", "policy": "direct"},
    ("POST", "/users/{user_id}/forget"): {"text": "Two"},
    ("PATCH", "/users/{user_id}/blocks/{label:path}"): {"policy": "direct"},
    ("POST", "/users/{user_id}/blocks/{label:path}/restore"): {"sha": "{sha}"},
    ("POST", "/users/{user_id}/blocks/{label:path}/propose"): {
        "old_string": "One",
        "new_string": "Zero",
        "reasoning": "So.",
    },
    ("POST", "/users/{user_id}/decision-links"): {"proposal_id": "{diff_id}"},
    ("POST", "/users/{user_id}/diffs/approve"): {"ids": ["{diff_id}"]},
    ("POST", "/users/{user_id}/diffs/reject"): {"ids": ["{diff_id}"]},
    ("POST", "/users/{user_id}/memories"): {"messages": "Hello."},
    ("POST", "/v1/users/{user_id}/facts"): {"sentence": "I live in Graz."},
    ("PATCH", "/v1/users/{user_id}/facts/{fact_id}"): {"sentence": "I like tea."},
    ("PUT", "/v1/users/{user_id}/facts/policy"): {"policy": "propose"},
    ("PUT", "/v1/users/{user_id}/facts/egress"): {"kind": "who", "allowed": ["local"]},
    ("PUT", "/v1/facts/policy"): {"policy": "off"},
    ("POST", "/chat/stream"): {"model": "{agent_id}", "messages": TEXT},
    ("PUT", "/users/{user_id}/workspace/files/{file_path:path}"): b"Mine.",
    ("PUT", "/v1/workspace/files/{shared_path:path}"): b"For all.",
    ("POST", "/api/you/notes/{note_id}/update"): {"data": {"content": {"md": "Mine."}}},
    ("POST", "/background/tasks"): {
        "name": "another",
        "agent_id": "{agent_id}",
        "instructions": "Look.",
        "trigger": {"type": "cron", "schedule": "0 0 1 1 *"},
    },
    ("PUT", "/v1/courses/{course_name}"): {
        "source": '[[agent]]\nname = "coach"\ninstructions = "b"\n'
        '[[skill]]\nname = "sums"\n[[skill]]\nname = "percent"\n'
    },
    ("POST", "/v1/courses/{course_name}/check"): {
        "source": '[[agent]]\nname = "a"\ninstructions = "b"'
    },
    ("POST", "/users/{user_id}/ask"): {"question": "What do I like?"},
    ("POST", "/users/{user_id}/memories/search"): {"query": "vuqkzoqada"},
    ("PUT", "/users/{user_id}/remotes"): {"kind": "git", "address": "{remotes}/another.git"},
    ("POST", "/users/{user_id}/memory.git/git-upload-pack"): FETCH,
    ("POST", "/users/{user_id}/memory.git/git-receive-pack"): PUSH,
}
# The fields of the pages' forms.
FORMS: dict[str, Mapping[str, str]] = {
    "/ui/first": {"message": "Hello."},
    "/ui/say": {"agent": "{agent_id}", "message": "Hello."},
    "/ui/agents": {"name": "Mine", "model": "scripted/model"},
    "/ui/agents/{agent_id}/chat": {"message": "Hello."},
    "/ui/agents/{agent_id}/chat/change": {"title": "Mine."},
    "/ui/agents/{agent_id}/chat/line": {"user": "{owner_id}", "label": "notes"},
    "/ui/agents/{agent_id}/chat/undo": {"user": "{owner_id}", "run": "{run_id}"},
    "/ui/agents/{agent_id}/settings": {"description": "Mine."},
    "/ui/agents/{agent_id}/tools/{tool_id}": {"do": "attach"},
    "/ui/agents/{agent_id}/secrets": {"name": "KEY", "value": "mine"},
    "/ui/mcp": {"name": "by-page", "address": "{mcp_url}"},
    "/ui/agents/{agent_id}/archive": {"text": "Mine."},
    "/ui/tools": {"source_code": "def mine_too():\n    'Mine.'"},
    "/ui/tools/variables": {"name": "MINE_TOO", "value": "mine"},
    "/ui/tools/{tool_id}": {"tags": "mine"},
    "/ui/tools/{tool_id}/try": {"arguments": "{}"},
    "/ui/agents/{agent_id}/archive/{passage_id}": {"text": "Mine."},
    "/ui/agents/{agent_id}/memory/new": {"label": "fresh", "value": "Mine."},
    "/ui/people/{user_id}/new": {"label": "fresh", "value": "Mine."},
    "/ui/people/{user_id}/facts/policy": {"policy": "propose"},
    "/ui/people/{user_id}/facts/{fact_id}": {"action": "change", "sentence": "I like tea."},
    **{
        f"{page}{rest}": {**action, "text": f"---\nname: {name}\ndescription: Mine.\n---\nMine.\n"}
        for page in (
            "/ui/people/{user_id}/skills",
            "/ui/agents/{agent_id}/skills",
            "/ui/skills/organization",
        )
        for rest, action, name in (
            ("", {}, "mine"),
            ("/{skill_name}", {"action": "save"}, "{skill_name}"),
        )
    },
    "/ui/people/{user_id}/guardians": {
        "action": "choose",
        "guardian": "{guardian_id}",
        "sees": "levels",
    },
    "/ui/people/{user_id}/learning/{course_name}": {"action": "dispute", "skill": "sums"},
    "/ui/people/{user_id}/decide": {"id": "{diff_id}", "decision": "reject"},
    "/ui/people/{user_id}/forget-one": {"text": "Two"},
    "/ui/people/{user_id}/forget-one/remove": {"text": "Two", "id": "message/none"},
    "/ui/people/{user_id}/forget-one/decline": {"request_id": "{forget_request_id}"},
    "/ui/people/{user_id}/settings/{label:path}": {"policy": "direct"},
    "/ui/people/{user_id}/blocks/{label:path}": {"value": "Mine."},
    "/ui/people/{user_id}/blocks/{label:path}/restore": {"sha": "{sha}"},
    "/ui/models/providers": {"provider_type": "openai", "name": "new-page", "api_key": "sk-1"},
    "/ui/files": {"name": "mine"},
    "/ui/groups": {"description": "Mine.", "kind": "round_robin", "member": "{agent_id}"},
    "/ui/groups/{group_id}": {"description": "Mine."},
    "/ui/groups/{group_id}/say": {"message": "Hello."},
    "/ui/sleeptime/{agent_id}": {"do": "pause"},
    "/ui/sleeptime/{agent_id}/frequency": {"frequency": "0"},
    "/ui/templates/{template_name}/rollback": {"version": "1"},
    "/ui/files/{folder_id}/agents": {"agent": "{agent_id}"},
    "/ui/settings/keys": {"user": "eve"},
    "/ui/settings/users": {"name": "new-page"},
    "/ui/settings/users/{user}": {"disabled": "no"},
}
UPLOADS = (
    *(
        "/v1/folders/{folder_id}/upload",
        "/v1/sources/{folder_id}/upload",
        "/ui/files/{folder_id}/upload",
    ),
    *("/v1/agents/import", "/v1/imports", "/ui/imports", "/ui/workspace/{user_id}/upload"),
    *("/v1/skills", "/v1/users/{user_id}/skills", "/v1/agents/{agent_id}/skills"),
    *("/ui/shared-workspace/upload", "/v1/imports/memory", "/ui/imports/memory"),
)
FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="mine.txt"\r\n\r\nMine.\r\n--x--\r\n'
EXPORT = b'--x\r\ncontent-disposition: form-data; name="kind"\r\n\r\nclaude\r\n' + FILE.replace(
    b"Mine.", b"[]"
)


def zipped_skill() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("SKILL.md", "---\nname: mine\ndescription: Mine.\n---\nMine.\n")
    return buffer.getvalue()


SKILL = FILE.replace(b"Mine.", zipped_skill())
AGENT_FILE = FILE.replace(
    b"Mine.", b'{"agents": [{"id": "agent-0", "name": "Mine", "model": "scripted/model"}]}'
)
HEADERS = {path: {"content-type": "multipart/form-data; boundary=x"} for path in UPLOADS} | {
    f"/users/{{user_id}}/memory.git/{name}": {"content-type": f"application/x-{name}-request"}
    for name in ("git-upload-pack", "git-receive-pack")
}
QUERIES: dict[str, Mapping[str, str]] = {
    "/v1/conversations/": {"agent_id": "{agent_id}"},
    "/v1/runs/": {"conversation_id": "{conversation_id}"},
    "/v1/steps/": {"agent_id": "{agent_id}"},
    "/v1/archives/": {"agent_id": "{agent_id}"},
    "/v1/ledger": {"group_by": "user"},
    "/v1/agents/{agent_id}/context": {"conversation_id": "{conversation_id}"},
    "/v1/agents/{agent_id}/messages": {"conversation_id": "{conversation_id}"},
    "/v1/agents/{agent_id}/archival-memory/search": {"query": "vuqkzoqada"},
    "/users/{user_id}/memory.git/info/refs": {"service": "git-upload-pack"},
}


def fill(given: Any, values: Mapping[str, str]) -> Any:
    """Replace each `{name}` by its value, in a text or in all texts of a list or object."""
    if isinstance(given, str):
        return re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: values[match[1]], given)
    if isinstance(given, list):
        return [fill(one, values) for one in given]
    return (
        {name: fill(one, values) for name, one in given.items()}
        if isinstance(given, dict)
        else given
    )


@dataclass(frozen=True)
class Cell:
    """One route with a valid request."""

    method: str
    path: str
    scopes: tuple[str, ...]

    @property
    def deletes(self) -> bool:
        """Whether the route deletes something; pages delete by POST."""
        return self.method == "DELETE" or self.path.endswith(("/delete", "/revoke"))

    def parts(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the request with these values in its path, query and body."""
        body = BODIES.get((self.method, self.path), SCHEMAS.get((self.method, self.path)))
        sent: dict[str, Any] = {} if body is None else {"json": fill(body, values)}
        if isinstance(body, bytes):
            sent = {"content": fill(body.decode("latin-1"), values).encode("latin-1")}
        if self.method == "POST" and self.path.startswith("/ui/"):
            sent = {"data": fill(dict(FORMS.get(self.path, {})), values)}
        if self.path in UPLOADS and self.method == "POST":
            special = {
                "/v1/agents/import": AGENT_FILE,
                "/v1/imports": EXPORT,
                "/ui/imports": EXPORT,
                "/v1/skills": SKILL,
                "/v1/agents/{agent_id}/skills": SKILL,
            }
            sent = {"content": special.get(self.path, FILE)}
        is_known = self.method == "GET" or self.path == "/v1/conversations/"
        query = fill(dict(QUERIES.get(self.path, {})), values) if is_known else {}
        return {"method": self.method, "url": fill(self.path, values), "params": query, **sent}

    def ask(
        self, http: httpx2.Client, values: Mapping[str, str], headers: Mapping[str, Any]
    ) -> httpx2.Response:
        """Send the request with the headers of this caller."""
        http.cookies.clear()  # Each caller has separate cookies, like a separate browser.
        own = HEADERS.get(self.path, {}) if self.method == "POST" else {}
        return http.request(**self.parts(values), headers={**own, **headers})


SCHEMAS: dict[tuple[str, str], Any] = {}


def least(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """Return the smallest value that the schema accepts."""
    if "$ref" in schema:
        return least(document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], document)
    if "anyOf" in schema:
        return least(schema["anyOf"][0], document)
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: least(fields[name], document) for name in schema.get("required", ())}
        case "array":
            return [least(schema["items"], document)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
    return "text"


def cells_of(app: FastAPI) -> list[Cell]:
    """Return all routes of the app that declare scopes, and fill SCHEMAS for their bodies."""
    document = app.openapi()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                SCHEMAS[method.upper(), path] = least(
                    content["application/json"]["schema"], document
                )
    routes = [route for route in app.routes if isinstance(route, GuardedRoute)]
    for route in routes:
        SCHEMAS.update(
            {
                (method, route.path): SCHEMAS.get((method, route.path_format))
                for method in route.methods
            }
        )
    return [
        Cell(method, route.path, route.scopes or ())
        for route in routes
        for method in sorted(route.methods)
    ]
