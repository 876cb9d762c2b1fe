"""A database as the retired Letta V1 server 0.16.8 leaves one, on real PostgreSQL: its tables as far as they matter, with rows."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

from tests.support import postgres

KEY = "the key of that server"
ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
BEGINNING = datetime(2025, 3, 1, 12, tzinfo=UTC)
_COMMON = "id text, created_at timestamptz, updated_at timestamptz, is_deleted bool, organization_id text, "
# By table: its columns, in SQL. Link tables have none of the common ones.
_TABLES = {
    "organizations": "name text, privileged_tools bool",
    "agents": (
        "agent_type text, name text, description text, system text, message_ids json, response_format json, metadata_ json, "
        "llm_config json, embedding_config json, compaction_settings json, tool_rules json, message_buffer_autoclear bool, "
        "enable_sleeptime bool, timezone text, max_files_open int, per_file_view_window_char_limit int, hidden bool"
    ),
    "block": (
        'template_name text, description text, label text, is_template bool, value text, "limit" int, metadata_ json, '
        "read_only bool, hidden bool, version int"
    ),
    "tools": (
        "name text, tool_type text, return_char_limit int, description text, tags json, source_type text, source_code text, "
        "json_schema json, args_json_schema json, pip_requirements json, default_requires_approval bool"
    ),
    "messages": (
        "role text, text text, content json, model text, name text, tool_calls json, tool_call_id text, step_id text, otid text, "
        "tool_returns json, group_id text, sender_id text, conversation_id text, approval_request_id text, approve bool, "
        "denial_reason text, approvals json, sequence_id int, agent_id text"
    ),
    "conversations": "agent_id text, summary text, model text, model_settings json, last_message_at timestamptz",
    "conversation_messages": "conversation_id text, agent_id text, message_id text, position int, in_context bool",
    "archives": "name text, description text, embedding_config json, metadata_ json",
    "archival_passages": "text text, embedding_config json, metadata_ json, tags json, archive_id text, embedding real[]",
    "identities": "identifier_key text, name text, identity_type text, properties json",
    "sources": "name text, description text, instructions text, metadata_ json",
    "files": "file_name text, original_file_name text, source_id text, processing_status text",
    "file_contents": "file_id text, text text",
    "agent_environment_variables": "key text, value text, description text, value_enc text, agent_id text",
    "groups": "description text",
    "runs": "status text, agent_id text",
}
_LINKS = {
    "blocks_agents": "agent_id text, block_id text, block_label text",
    "tools_agents": "agent_id text, tool_id text",
    "agents_tags": "agent_id text, tag text",
    "archives_agents": "agent_id text, archive_id text, is_owner bool",
    "identities_agents": "identity_id text, agent_id text",
    "sources_agents": "agent_id text, source_id text",
}


def id_of(kind: str, name: str) -> str:
    made = uuid5(UUID(int=0), name).hex
    return f"{kind}-{made[:8]}-{made[8:12]}-4{made[13:16]}-8{made[17:20]}-{made[20:]}"


def sealed(value: str) -> str:
    """A value as that server encrypts it."""
    salt, iv = b"s" * 16, b"i" * 12
    key = PBKDF2HMAC(SHA256(), 32, salt, 100_000).derive(KEY.encode())
    return base64.b64encode(salt + iv + AESGCM(key).encrypt(iv, value.encode(), None)).decode()


class LettaTables:
    """The database, and what is put into it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._rows = 0
        with psycopg.connect(url, autocommit=True) as connection:
            for name, columns in _TABLES.items():
                connection.execute(f'CREATE TABLE "{name}" ({_COMMON}{columns})')
            for name, columns in _LINKS.items():
                connection.execute(f'CREATE TABLE "{name}" ({columns})')

    def add(self, table: str, **values: Any) -> str:
        """Add a row; returns its id."""
        self._rows += 1
        at = values.pop("at", BEGINNING + timedelta(minutes=self._rows))
        if table in _TABLES:
            common = {"created_at": at, "updated_at": at, "is_deleted": False, "organization_id": ORGANIZATION}
            values = {**common, **values}
        given = [json.dumps(one) if isinstance(one, dict | list) else one for one in values.values()]
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("%s" for _ in values)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', given)  # noqa: S608 - of this file
        return str(values.get("id", ""))

    def fill(self) -> None:
        """Two agents that share a block and an archive, with tools, files, users, secrets, and what cannot come along."""
        self.add("organizations", id=ORGANIZATION, name="School")
        self.add(
            "block", id=id_of("block", "persona"), label="persona", value="I am Nina.", limit=5000, read_only=False
        )
        self.add("block", id=id_of("block", "human"), label="human", value="Her name is Ada.", limit=3, read_only=True)
        self.add("block", id=id_of("block", "team"), label="team", value="We meet on Mondays.", limit=2000)
        self.add("block", id=id_of("block", "gone"), label="gone", value="Deleted.", is_deleted=True)
        source = "def greet(name: str) -> str:\n    '''Greet.\n\n    Args:\n        name (str): Whom.\n    '''\n    return name\n"
        self.add(
            "tools",
            id=id_of("tool", "greet"),
            name="greet",
            tool_type="custom",
            source_code=source,
            source_type="python",
        )
        self.add("tools", id=id_of("tool", "search"), name="archival_memory_search", tool_type="letta_core")
        self.add("tools", id=id_of("tool", "far"), name="far_away", tool_type="external_mcp")
        self.add(
            "identities",
            id=id_of("identity", "ada"),
            identifier_key="ada@school",
            name="Ada",
            identity_type="user",
            properties=[],
        )
        self.add("archives", id=id_of("archive", "facts"), name="Facts", description="What is known")
        for number in range(30):
            text = f"Fact {number}: the marmalade jar {number} stands on the shelf."
            self.add(
                "archival_passages",
                id=id_of("passage", f"p{number}"),
                archive_id=id_of("archive", "facts"),
                text=text,
                tags=["jar"],
            )
        self.add("sources", id=id_of("source", "handbook"), name="Handbook", description="Rules")
        self.add(
            "files",
            id=id_of("file", "rules"),
            source_id=id_of("source", "handbook"),
            original_file_name="rules.pdf",
            file_name="rules.pdf",
        )
        self.add(
            "file_contents",
            id=id_of("file_content", "rules"),
            file_id=id_of("file", "rules"),
            text="No running in the corridor.",
        )
        for name, kind in (("nina", "letta_v1_agent"), ("olaf", "memgpt_v2_agent")):
            self._agent(name, kind)
        self.add(
            "agents", id=id_of("agent", "odd"), name="Odd", agent_type="voice_convo_agent_of_tomorrow", message_ids=[]
        )
        self.add("groups", id=id_of("group", "one"), description="A group")
        self.add("runs", id=id_of("run", "one"), status="completed")

    def _agent(self, name: str, kind: str) -> None:
        agent = id_of("agent", name)
        said = self._messages(name, agent)
        config = {
            "handle": "scripted/model",
            "model": "model",
            "model_endpoint_type": "openai",
            "context_window": 16000,
        }
        self.add(
            *("agents",),
            id=agent,
            name=name.title(),
            agent_type=kind,
            system="You help.",
            description="Helps",
            message_ids=said,
            metadata_={"grade": 5},
            llm_config=config,
            tool_rules=[
                {"type": "requires_approval", "tool_name": "greet"},
                {"type": "exit_loop", "tool_name": "far_away"},
            ],
            timezone="Europe/Rome",
            message_buffer_autoclear=False,
            hidden=False,
        )
        own = ("persona", "human") if name == "nina" else ()
        for block in (*own, "team"):
            self.add("blocks_agents", agent_id=agent, block_id=id_of("block", block), block_label=block)
        for tool in ("greet", "search", "far"):
            self.add("tools_agents", agent_id=agent, tool_id=id_of("tool", tool))
        self.add("agents_tags", agent_id=agent, tag="school")
        self.add("archives_agents", agent_id=agent, archive_id=id_of("archive", "facts"), is_owner=name == "nina")
        if name == "nina":
            self.add("identities_agents", identity_id=id_of("identity", "ada"), agent_id=agent)
            self.add("sources_agents", agent_id=agent, source_id=id_of("source", "handbook"))
            for key, value in (("TOKEN", sealed("swordfish")), ("OTHER", "bm90aGluZw==")):
                self.add("agent_environment_variables", id=id_of("env", key), agent_id=agent, key=key, value_enc=value)
            self.add("agent_environment_variables", id=id_of("env", "PLAIN"), agent_id=agent, key="PLAIN", value="bare")

    def _messages(self, name: str, agent: str) -> list[str]:
        """Put a history into the database; returns the ids of what is in context."""
        talk: list[dict[str, Any]] = [
            {"role": "system", "content": [{"type": "text", "text": "You help. (compiled)"}]},
            {"role": "user", "text": '{"type": "user_message", "message": "Good morning from 2025.", "time": "x"}'},
            {
                "role": "assistant",
                "content": [
                    {"type": "reasoning", "reasoning": "A greeting.", "is_native": True},
                    {"type": "text", "text": "Good morning!"},
                ],
            },
            {"role": "user", "content": [{"type": "text", "text": "Greet Bob, please."}]},
            {
                "role": "assistant",
                "content": [],
                "tool_calls": [
                    {"id": "call-1", "type": "function", "function": {"name": "greet", "arguments": '{"name": "Bob"}'}}
                ],
            },
            {
                "role": "tool",
                "name": "greet",
                "tool_call_id": "call-1",
                "content": [{"type": "text", "text": '{"status": "OK", "message": "Hi Bob"}'}],
                "tool_returns": [{"tool_call_id": "call-1", "status": "success", "func_response": "Hi Bob"}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "I greeted Bob."}]},
        ]
        talk += [
            {"role": "user", "content": [{"type": "text", "text": f"Remark {number} about turnips."}]}
            for number in range(5)
        ]
        ids = []
        for number, message in enumerate(talk):
            ids.append(id_of("message", f"{name}-{number}"))
            self.add("messages", id=ids[-1], agent_id=agent, sequence_id=number, **message)
        if name == "nina":
            thread = self.add("conversations", id=id_of("conv", "thread"), agent_id=agent, summary="About boats")
            for number, (role, text) in enumerate(
                (("system", "You help."), ("user", "Boats?"), ("assistant", "Yes, boats."))
            ):
                one = id_of("message", f"thread-{number}")
                content = [{"type": "text", "text": text}]
                self.add(
                    "messages",
                    id=one,
                    agent_id=agent,
                    conversation_id=thread,
                    role=role,
                    content=content,
                    sequence_id=100 + number,
                )
                place = {
                    "conversation_id": thread,
                    "agent_id": agent,
                    "message_id": one,
                    "position": number,
                    "in_context": True,
                }
                self.add("conversation_messages", id=id_of("cm", one), **place)
        return [ids[0], *ids[3:]]


@contextmanager
def letta_database() -> Iterator[LettaTables]:
    """A database with those tables and no rows."""
    server = postgres.server()
    url = server.new_database(empty=True)
    try:
        yield LettaTables(url)
    finally:
        server.drop(url)
