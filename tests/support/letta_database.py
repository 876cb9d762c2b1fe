"""A database of a Letta V1 server 0.16.8, as `ricordo import letta` finds it.

The database has the server's tables, with two agents, on a real PostgreSQL.

`fill(url, messages=…)` makes the tables and the same rows at each call.
"""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from psycopg.types.json import Json

KEY = "the key of that server"
ORGANIZATION = "org-00000000-0000-4000-8000-000000000000"
BEGIN = datetime(2025, 3, 1, 9, 0, tzinfo=UTC)
# Columns besides the common ones, each with its type: :j JSON, :i integer, :b boolean, :t time, :v
# vector. A name without a type is a text column.
_TABLES = """
organizations name privileged_tools:b
users name
identities identifier_key name identity_type properties:j
identities_agents* identity_id agent_id
identities_blocks* identity_id block_id
agents agent_type name description system message_ids:j response_format:j metadata_:j llm_config:j embedding_config:j
  compaction_settings:j tool_rules:j message_buffer_autoclear:b enable_sleeptime:b last_run_completion:t
  last_run_duration_ms:i last_stop_reason timezone max_files_open:i per_file_view_window_char_limit:i hidden:b
  _vector_db_namespace
agents_tags* agent_id tag
agent_environment_variables key value description value_enc agent_id
archives name description vector_db_provider embedding_config:j metadata_:j _vector_db_namespace
archives_agents* agent_id archive_id is_owner:b
archival_passages text embedding_config:j metadata_:j tags:j archive_id embedding:v
block template_name description label is_template:b preserve_on_migration:b value limit:i metadata_:j read_only:b
  hidden:b current_history_entry_id version:i
block_history description label value limit:i metadata_:j actor_type actor_id block_id sequence_number:i
blocks_agents* agent_id block_id block_label
blocks_tags* block_id tag
conversations agent_id summary model model_settings:j last_message_at:t
conversation_messages* conversation_id agent_id message_id position:i in_context:b
messages role text content:j model name tool_calls:j tool_call_id step_id run_id otid tool_returns:j group_id sender_id
  batch_item_id conversation_id is_err:b approval_request_id approve:b denial_reason approvals:j sequence_id:i agent_id
sources name description instructions embedding_config:j metadata_:j vector_db_provider
sources_agents* agent_id source_id
files file_name original_file_name file_path file_type file_size:i processing_status error_message total_chunks:i
  chunks_embedded:i source_id
file_contents file_id text
tools name tool_type return_char_limit:i description tags:j source_type source_code json_schema:j args_json_schema:j
  pip_requirements:j npm_requirements:j default_requires_approval:b enable_parallel_execution:b metadata_:j
tools_agents* agent_id tool_id
groups description manager_type manager_agent_id agent_ids:j termination_token max_turns:i sleeptime_agent_frequency:i
  hidden:b
groups_blocks* group_id block_id
providers name provider_type api_key api_key_enc
mcp_server server_name server_type server_url
runs status agent_id
steps agent_id model
"""
_TYPES = {
    "": "text",
    "j": "json",
    "i": "bigint",
    "b": "boolean",
    "t": "timestamptz",
    "v": "vector(4096)",
}
_COMMON = {
    "id": "text PRIMARY KEY",
    "created_at": "timestamptz",
    "updated_at": "timestamptz",
    "is_deleted": "boolean",
}
ADD = '''def add_up(one: int, two: int) -> int:
    """Add two numbers.

    Args:
        one: The first.
        two: The second.
    """
    return one + two
'''


def made_id(kind: str, name: object) -> str:
    return f"{kind}-{UUID(bytes=uuid5(NAMESPACE_URL, f'{kind}/{name}').bytes, version=4)}"


ADA, BO = made_id("agent", "ada"), made_id("agent", "bo")
CONVERSATION, ARCHIVE, USER = made_id("conv", 1), made_id("archive", 1), made_id("identity", "ada")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def sealed(value: str) -> str:
    salt, iv = b"s" * 16, b"i" * 12
    key = PBKDF2HMAC(SHA256(), 32, salt, 100_000).derive(KEY.encode())
    return b64encode(salt + iv + AESGCM(key).encrypt(iv, value.encode(), None)).decode()


class LettaDatabase:
    """The tables, and rows that are inserted by name: `letta.put("tools", name="add_up")`."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self._places: dict[str, int] = {}
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        for line in _TABLES.replace("\n  ", " ").strip().splitlines():
            name, *columns = line.split()
            typed = {} if name.endswith("*") else {**_COMMON, "organization_id": "text"}
            for column in columns:
                title, _, kind = column.partition(":")
                typed[title] = _TYPES[kind]
            listed = ", ".join(f'"{title}" {kind}' for title, kind in typed.items())
            self.connection.execute(f"CREATE TABLE {name.rstrip('*')} ({listed})".encode())

    def put(self, table: str, **values: Any) -> None:
        place = self._places[table] = self._places.get(table, 0) + 1
        if "id" in values:
            common = {
                "created_at": at(place),
                "updated_at": at(place),
                "is_deleted": False,
                "organization_id": ORGANIZATION,
            }
            values = common | values
        names = ", ".join(f'"{name}"' for name in values)
        given = [
            Json(value) if isinstance(value, dict | list) else value for value in values.values()
        ]
        holders = ", ".join(["%s"] * len(given))
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({holders})".encode(), given)  # noqa: S608

    def message(self, agent: str, role: str, content: Any, **more: Any) -> str:
        number = self._places.get("messages", 0) + 1
        id = more.pop("id", None) or made_id("message", number)
        given = (
            content
            if isinstance(content, list) or content is None
            else [{"type": "text", "text": content}]
        )
        self.put(
            "messages", id=id, agent_id=agent, role=role, content=given, sequence_id=number, **more
        )
        return str(id)


def fill(url: str, *, messages: int = 6, passages: int = 3) -> LettaDatabase:
    """Make the tables with two agents.

    Ada has this number of messages and passages, and one of everything else. Bo shares a block with
    her.
    """
    letta = LettaDatabase(url)
    letta.put("organizations", id=ORGANIZATION, name="default_org")
    _put_shared(letta, passages)
    llm = {
        "handle": "scripted/model",
        "model": "model",
        "context_window": 30_000,
        "model_endpoint_type": "openai",
    }
    common = {
        "agent_type": "memgpt_v2_agent",
        "timezone": "Europe/Rome",
        "llm_config": llm,
        "tool_rules": [],
        "hidden": False,
    }
    rules = [
        {"type": "exit_loop", "tool_name": "send_message"},
        {"type": "odd", "tool_name": "send_message"},
        {"type": "exit_loop", "tool_name": "gone"},
    ]
    said = [_said(letta, number) for number in range(messages)]
    window = [id for group in said for id in group]
    first = letta.message(ADA, "system", "The old prompt.", created_at=at(0))
    letta.connection.execute("UPDATE messages SET sequence_id = 0 WHERE id = %s", [first])
    letta.put(
        "agents",
        id=ADA,
        name="Ada's tutor",
        description="Teaches.",
        system="You teach.",
        metadata_={"year": 1},
        message_ids=[first, *window[-9:]],
        **common | {"tool_rules": rules, "enable_sleeptime": True},
    )
    letta.put(
        "agents",
        id=BO,
        name="Bo",
        system="You play.",
        message_ids=[],
        **common | {"agent_type": "a_new_type"},
    )
    letta.put(
        "agents", id=made_id("agent", "gone"), name="Gone", system="", is_deleted=True, **common
    )
    letta.put("agents_tags", agent_id=ADA, tag="school")
    for tool in ("add_up", "send_message", "roll_dice", "web_thing"):
        letta.put("tools_agents", agent_id=ADA, tool_id=made_id("tool", tool))
    for block in ("human", "history", "rules"):
        letta.put(
            "blocks_agents", agent_id=ADA, block_id=made_id("block", block), block_label=block
        )
    letta.put("blocks_agents", agent_id=BO, block_id=made_id("block", "rules"), block_label="rules")
    letta.put("archives_agents", agent_id=ADA, archive_id=ARCHIVE, is_owner=True)
    letta.put("sources_agents", agent_id=ADA, source_id=made_id("source", "shelf"))
    letta.put("identities_agents", agent_id=ADA, identity_id=USER)
    letta.put("identities_blocks", block_id=made_id("block", "human"), identity_id=USER)
    letta.put(
        "agent_environment_variables", id=made_id("env", 1), key="PLAIN", value="open", agent_id=ADA
    )
    letta.put(
        "agent_environment_variables",
        id=made_id("env", 2),
        key="SHOP_KEY",
        value_enc=sealed("hush"),
        agent_id=ADA,
    )
    _put_thread(letta)
    letta.put("groups", id=made_id("group", 1), manager_type="sleeptime", agent_ids=[ADA])
    letta.put(
        "groups",
        id=made_id("group", 2),
        description="Both.",
        manager_type="round_robin",
        agent_ids=[BO, ADA],
        max_turns=3,
    )
    letta.put("groups_blocks", group_id=made_id("group", 2), block_id=made_id("block", "rules"))
    letta.put(
        "providers",
        id=made_id("provider", 1),
        name="openai",
        provider_type="openai",
        api_key="sk-1",
    )
    return letta


def _put_shared(letta: LettaDatabase, passages: int) -> None:
    letta.put(
        "identities",
        id=USER,
        identifier_key="ada@school",
        name="Ada",
        identity_type="user",
        properties=[],
    )
    tool = {
        "tool_type": "custom",
        "source_type": "python",
        "source_code": ADD,
        "tags": ["sums"],
        "return_char_limit": 900,
    }
    letta.put("tools", id=made_id("tool", "add_up"), name="add_up", **tool)
    letta.put(
        "tools",
        id=made_id("tool", "broken"),
        name="broken",
        **tool | {"source_code": "def broken("},
    )
    letta.put(
        "tools", id=made_id("tool", "send_message"), name="send_message", tool_type="letta_core"
    )
    letta.put("tools", id=made_id("tool", "roll_dice"), name="roll_dice", tool_type="letta_core")
    letta.put("tools", id=made_id("tool", "web_thing"), name="web_thing", tool_type="external_mcp")
    letta.put(
        "archives", id=ARCHIVE, name="Ada's archive", metadata_={}, vector_db_provider="native"
    )
    for number in range(passages):
        letta.put(
            "archival_passages",
            id=made_id("passage", number),
            text=f"Fact {number}: tea grows in Darjeeling.",
            tags=["tea"],
            metadata_={"number": number},
            archive_id=ARCHIVE,
            embedding_config={"embedding_dim": 4},
            embedding=str([0.0] * 4096),
        )
    block: dict[str, Any] = {
        "limit": 2000,
        "metadata_": {},
        "read_only": False,
        "is_template": False,
        "hidden": False,
    }
    letta.put(
        "block",
        id=made_id("block", "human"),
        label="human",
        value="Ada likes tea.",
        description="Who.",
        **block,
    )
    for number, value in enumerate(("Ada.", "Ada likes coffee.", "Ada likes tea.")):
        letta.put(
            "block_history",
            id=made_id("block_hist", number),
            block_id=made_id("block", "human"),
            label="human",
            value=value,
            sequence_number=number,
        )
    letta.put("block", id=made_id("block", "history"), label="history", value="x" * 3000, **block)
    letta.put(
        "block",
        id=made_id("block", "rules"),
        label="rules",
        value="Be kind.",
        **block | {"read_only": True},
    )
    letta.put("block", id=made_id("block", "loose"), label="loose", value="Nobody's.", **block)
    letta.put(
        "block",
        id=made_id("block", "t"),
        label="template",
        value="",
        **block | {"is_template": True},
    )
    letta.put("blocks_tags", block_id=made_id("block", "human"), tag="people")
    letta.put(
        "sources", id=made_id("source", "shelf"), name="Shelf", description="Plans.", metadata_={}
    )
    file = {"source_id": made_id("source", "shelf"), "processing_status": "completed"}
    letta.put(
        "files",
        id=made_id("file", 1),
        file_name="plan_1.pdf",
        original_file_name="plan.pdf",
        **file,
    )
    letta.put(
        "file_contents",
        id=made_id("fc", 1),
        file_id=made_id("file", 1),
        text="Lesson one.\nLesson two.\n",
    )
    letta.put(
        "files", id=made_id("file", 2), file_name="lost.txt", original_file_name="lost.txt", **file
    )


def _said(letta: LettaDatabase, number: int) -> list[str]:
    """Insert a turn in the format of heartbeat agents.

    Texts are JSON. The agent thinks, and makes two calls. The results are inserted after the calls,
    but have an earlier time.
    """
    words = f'{{"type": "user_message", "message": "Question {number} about tea.", "time": "now"}}'
    begin, call, more = 10 + number * 10, f"call-{number}-a", f"call-{number}-b"
    calls = [
        {
            "id": call,
            "type": "function",
            "function": {"name": "add_up", "arguments": '{"one": 1, "two": 2}'},
        },
        {"id": more, "type": "function", "function": {"name": "roll_dice", "arguments": "{}"}},
    ]
    returns = [
        {
            "tool_call_id": call,
            "status": "success",
            "func_response": "3",
            "stdout": ["printed"],
            "stderr": [],
        },
        {
            "tool_call_id": more,
            "status": "error",
            "func_response": "no dice",
            "stdout": None,
            "stderr": "oops",
        },
    ]
    thought = {
        "type": "reasoning",
        "reasoning": f"Hm {number}.",
        "is_native": True,
        "signature": "sig",
    }
    summary = {
        "type": "summarized_reasoning",
        "id": "r",
        "summary": [{"index": 0, "text": "In short."}],
        "encrypted_content": "x",
    }
    return [
        letta.message(
            ADA, "user", words, created_at=at(begin), otid=f"otid-{number}", sender_id=USER
        ),
        letta.message(
            ADA,
            "assistant",
            [thought, summary],
            tool_calls=calls,
            created_at=at(begin + 2),
            otid="twice",
        ),
        letta.message(
            ADA, "tool", "[]", tool_returns=returns, name="add_up", created_at=at(begin + 1)
        ),
        letta.message(
            ADA, "assistant", None, text=f"Answer {number}.", created_at=at(begin + 3), otid="twice"
        ),
    ]


def _put_thread(letta: LettaDatabase) -> None:
    """Insert another conversation, with an approval in the old form and an unreadable message."""
    letta.put(
        "conversations", id=CONVERSATION, agent_id=ADA, summary="Second", model="scripted/other"
    )
    thread: dict[str, Any] = {"conversation_id": CONVERSATION}
    call = {"id": "call-x", "type": "function", "function": {"name": "add_up", "arguments": "{}"}}
    said = [
        letta.message(ADA, "system", "The old prompt.", created_at=at(1), **thread),
        letta.message(ADA, "user", "Hello there.", created_at=at(2), **thread),
        letta.message(ADA, "approval", [], tool_calls=[call], created_at=at(3), **thread),
    ]
    decided = {"approval_request_id": said[-1], "approve": False, "denial_reason": "Not now."}
    said.append(letta.message(ADA, "approval", [], created_at=at(4), **decided, **thread))
    letta.message(ADA, "poet", "Roses.", created_at=at(5), **thread)
    letta.message(ADA, "user", "Lost.", created_at=at(6), conversation_id=made_id("conv", "gone"))
    for place, id in enumerate(said):
        row = {
            "conversation_id": CONVERSATION,
            "agent_id": ADA,
            "message_id": id,
            "position": place,
        }
        letta.put("conversation_messages", **row, in_context=place != 1)
