"""A server on which everybody has a key: users, services, and a second organization.

`world.ada` is the key of Ada, who has data of every kind, all of it with her CANARY. No other
caller may get this data from any route.
"""

import base64
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import httpx2
from pydantic import SecretStr
from sqlalchemy import insert, update

from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import (
    IMPERSONATE,
    LOCAL_ORGANIZATION,
    OVERRIDE,
    SCOPES,
    Actor,
    Role,
    Scope,
)
from ricordo.domain.version import ChangeMetadata
from ricordo.features.memory_care.forgetting import queries as forget_requests
from ricordo.features.memory_care.forgetting.queries import ForgetRequest
from ricordo.features.skills import service as skills
from ricordo.features.skills.skill import Skill, make_skill
from ricordo.llm.scripted import call
from ricordo.memory.submission import Submission
from ricordo.secret import Secret
from ricordo.storage import jobs, keys, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import KeyDraft
from ricordo.storage.schema.core_tables import api_keys, organizations
from ricordo.storage.schema.core_tables import users as users_table
from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.mcp import RawServer, raw_server
from tests.seams.mcp import tool as mcp_tool
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support import postgres
from tests.support.sandboxes import bubblewrap

OTHER_ORGANIZATION = "org-0ther000-0000-4000-8000-000000000000"
CANARY = "vuqkzoqada"
# All scopes that a user's key can have. A refusal then depends only on who owns the data.
EVERY_USERS = tuple(sorted({*SCOPES} - {OVERRIDE, IMPERSONATE}))
Wire = dict[str, Any]


@dataclass
class People:
    """Makes keys of a running server, and sends requests with them."""

    server: ServerInThread
    http: httpx2.Client

    def key(
        self,
        name: str,
        role: Role = "user",
        scopes: tuple[str, ...] = (),
        organization: str = LOCAL_ORGANIZATION,
        *,
        expires_at: int | None = None,
        kind: Literal["key", "session"] = "key",
    ) -> str:
        """Make a key of a user, or of a service, with this name."""
        user = None if role == "service" else name
        draft = KeyDraft(name, role, user, scopes, expires_at, kind)
        return self.server.write(
            lambda tx: keys.create(tx, Scope(organization), self._secret, draft)
        )[1]

    @property
    def _secret(self) -> bytes:
        return Secret(self.server.settings.data_dir).derive("api keys")

    def expired(self, name: str) -> str:
        made = self.key(name)
        return self._changed(made, expires_at=1)

    def revoked(self, name: str) -> str:
        made = self.key(name)
        return self._changed(made, revoked_at=1)

    def disabled(self, name: str) -> str:
        made = self.key(name)
        self.server.write(
            lambda tx: tx.run(
                update(users_table).where(users_table.c.identifier == name).values(disabled_at=1)
            )
        )
        return made

    def _changed(self, key: str, **values: int) -> str:
        digest = keys.hash_of(self._secret, key)
        self.server.write(
            lambda tx: tx.run(update(api_keys).where(api_keys.c.hash == digest).values(**values))
        )
        return key

    def id_of(self, name: str, organization: str = LOCAL_ORGANIZATION) -> str:
        user = self.server.read(lambda tx: users.named(tx, organization, name))
        assert user, name
        return user.id

    def send(self, key: str, method: str, path: str, **given: Any) -> httpx2.Response:
        headers = {**bearer(key), **given.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **given)

    def ask(self, key: str, method: str, path: str, **given: Any) -> Any:
        return ok(self.send(key, method, path, **given))


@dataclass
class World(People):
    """The people, and Ada's data.

    `own` maps the names of route parameters to her ids, `shared` to ids of the organization.
    """

    mcp_url: str = ""
    ada: str = ""
    ada_id: str = ""
    own: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)

    def fill(self) -> "World":
        """Make Ada's data, with her key where that is allowed."""
        other = {"id": OTHER_ORGANIZATION, "name": "Other", "created_at": 1}
        self.server.write(lambda tx: tx.run(insert(organizations), other))
        self.ada = self.key("ada", scopes=EVERY_USERS)
        self._make_shared()
        self._remember()
        self._talk()
        self._upload()
        user_id = self.ada_id = self.id_of("ada")
        self.own |= {"user_id": "ada", "owner_id": user_id}
        self.shared |= {
            "tag": "agents",
            "name": "message-path",
            "rest": "no-such-page",
            "device": "device-1",
            "connection": "connection-1",
        }
        self.shared["remotes"] = str(self.server.settings.data_dir / "remotes")
        job = Job(
            "test.none",
            LOCAL_ORGANIZATION,
            {"note": CANARY},
            user_id=user_id,
            not_before=2**52,
            key=CANARY,
        )
        self.server.write(lambda tx: jobs.add(tx, job))
        self.own["job_id"] = job.id
        self.key("dan")
        self.shared["key_id"] = self.ask(OPERATOR, "GET", "/v1/keys/")[0]["id"]
        self.shared["invitation_id"] = self.invite("hal")
        self.key("fay")
        self.shared["user"] = self.id_of("fay")
        self.key("gil")
        self.shared["identity_id"] = self.id_of("gil").replace("user-", "identity-")
        self._watch()
        self.key("carl")
        gone = self.send(OPERATOR, "DELETE", "/users/carl").json()
        self.shared["receipt_id"] = gone["id"]
        wait_for(
            lambda: self.send(OPERATOR, "GET", f"/v1/receipts/{gone['id']}").status_code == 200
        )
        return self

    def _watch(self) -> None:
        """Give Ada a guardian, and make her the guardian of a student who shows her levels."""
        self.key("hugo", "guardian")
        self.shared["guardian_id"] = "hugo"
        self.own["student_id"] = self.new_student("kim")["user_id"]
        for student, guardian in (("ada", "hugo"), ("kim", "ada")):
            self.ask(OPERATOR, "PUT", f"/v1/users/{student}/guardians/{guardian}")
        kim = "/v1/users/kim/guardians/ada"
        self.ask(OPERATOR, "PATCH", kim, json={"sees": "levels"})

    def invite(self, name: str) -> str:
        """Invite a person, and return the invitation's id."""
        people = {"people": [{"name": name}]}
        return str(self.ask(OPERATOR, "POST", "/v1/invitations", json=people)[0]["id"])

    def _make_shared(self) -> None:
        """Make the organization's data: an agent with its block and archive, a tool, a provider."""
        tools = [
            "memory_insert",
            "archival_memory_insert",
            "archival_memory_search",
            "conversation_search",
        ]
        blocks = [{"label": "persona", "value": "I teach."}]
        tool = self.ask(
            OPERATOR, "POST", "/v1/tools/", json={"source_code": "def greet():\n    'Greet.'"}
        )
        agent = self.ask(
            OPERATOR,
            "POST",
            "/v1/agents/",
            json={"model": MODEL, "name": "Tutor", "tools": tools, "memory_blocks": blocks},
        )
        self.ask(OPERATOR, "PATCH", f"/v1/agents/{agent['id']}/tools/attach/{tool['id']}")
        self._lay_asleep(agent["id"])
        archive = self.ask(OPERATOR, "POST", "/v1/archives/", json={"name": "Books"})
        self.ask(OPERATOR, "PATCH", f"/v1/agents/{agent['id']}/archives/attach/{archive['id']}")
        body = {
            "provider_type": "openai",
            "name": "bought",
            "api_key": "sk-nothing",
            "base_url": "http://127.0.0.1:9/v1",
        }
        provider = self.ask(OPERATOR, "POST", "/v1/providers/", json=body)
        self.shared |= {**self.new_mcp_server("vuqkmcp"), "mcp_url": self.mcp_url}
        (config,) = self.ask(OPERATOR, "GET", "/v1/sandbox-config/")
        self.shared["sandbox_config_id"] = config["id"]
        self.shared |= self.new_variable("SPARE")
        self.shared |= self.new_template(agent["id"])
        self.shared |= {
            "agent_id": agent["id"],
            "model_id": agent["id"],
            "archive_id": archive["id"],
            "provider_id": provider["id"],
            "tool_id": tool["id"],
            "tool_name": tool["name"],
            **self.new_course("essay"),
            "skill_name": "sums",
            "block_label": "persona",
            "shared_block_id": agent["memory"]["blocks"][0]["id"],
        }
        self.shared |= self.new_task("nightly", agent["id"]) | self.new_group(agent["id"])
        self.shared |= self.new_backup("kept.db")

    def _lay_asleep(self, agent_id: str) -> None:
        """Give the agent a sleeping agent that no turn wakes."""
        pair = self.ask(
            OPERATOR, "PATCH", f"/v1/agents/{agent_id}", json={"enable_sleeptime": True}
        )
        config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": 0}
        group_id = pair["multi_agent_group"]["id"]
        self.ask(OPERATOR, "PATCH", f"/v1/groups/{group_id}", json={"manager_config": config})

    def new_variable(self, name: str) -> dict[str, str]:
        """Store a variable of the organization's tools; return its route parameters."""
        place = f"/v1/sandbox-config/{self.shared['sandbox_config_id']}/environment-variable"
        return {
            "variable_id": self.ask(OPERATOR, "POST", place, json={"key": name, "value": "mine"})[
                "id"
            ]
        }

    def new_template(self, agent_id: str) -> dict[str, str]:
        """Make a template of the agent; return its route parameters."""
        name = self.ask(
            OPERATOR, "POST", "/v1/templates", json={"type": "agent", "agent_id": agent_id}
        )["name"]
        return {"template_name": name, "template_version": f"{name}:1"}

    def new_course(self, name: str) -> dict[str, str]:
        """Make a course; return its route parameters."""
        skills = "".join(f'[[skill]]\nname = "{skill}"\n' for skill in ("sums", "percent"))
        source = f'[[agent]]\nname = "coach"\ninstructions = "Coach."\n{skills}'
        return {
            "course_name": self.ask(
                OPERATOR, "PUT", f"/v1/courses/{name}", json={"source": source}
            )["name"]
        }

    def new_student(self, name: str = "bea") -> dict[str, str]:
        """Let a student talk with the course and share their skills with its teachers.

        Returns the route parameters.
        """
        agent = self.ask(OPERATOR, "GET", f"/v1/courses/{self.shared['course_name']}")["agents"][
            "coach"
        ]
        said = {"json": {"input": "Hello."}, "headers": {"x-ricordo-user": name}}
        self.ask(OPERATOR, "POST", f"/v1/agents/{agent}/messages", **said)
        learning = f"/v1/users/{name}/learning/{self.shared['course_name']}"
        self.ask(OPERATOR, "PATCH", learning, json={"shares": True})
        return {"user_id": name}

    def new_backup(self, name: str) -> dict[str, str]:
        """Put a backup into the data folder; return its route parameters."""
        folder = self.server.settings.data_dir / "backups"
        folder.mkdir(exist_ok=True)
        with closing(sqlite3.connect(folder / name)) as made:
            made.execute("CREATE TABLE IF NOT EXISTS empty (id)")
        return {"backup_name": name}

    def new_task(self, name: str, agent_id: str) -> dict[str, str]:
        """Make a background task of the agent; return its route parameters."""
        trigger = {"type": "cron", "schedule": "0 0 1 1 *"}
        body = {"name": name, "agent_id": agent_id, "instructions": "Look.", "trigger": trigger}
        return {"task_name": self.ask(OPERATOR, "POST", "/background/tasks", json=body)["name"]}

    def new_group(self, *agent_ids: str) -> dict[str, str]:
        """Make a group of these agents; return its route parameters."""
        body = {"agent_ids": agent_ids, "description": "A panel."}
        return {"group_id": self.ask(OPERATOR, "POST", "/v1/groups/", json=body)["id"]}

    def new_task_run(self) -> dict[str, str]:
        """Let the task run for Ada, to its end; return the run's route parameters."""
        place = f"/background/tasks/{self.shared['task_name']}/run"
        (run,) = self.ask(OPERATOR, "POST", place, json={"user_id": "ada"})["runs"]
        wait_for(lambda: self.ask(OPERATOR, "GET", f"/background/runs/{run['id']}")["ended_at"])
        return {"task_run_id": run["id"]}

    def new_batch(self) -> dict[str, str]:
        """Let a batch of Ada's run to its end; return its route parameters."""
        asked = {"agent_id": self.shared["agent_id"], "input": f"All at once {CANARY}."}
        made = self.ask(self.ada, "POST", "/v1/messages/batches", json={"requests": [asked] * 2})
        wait_for(
            lambda: self.ask(self.ada, "GET", f"/v1/messages/batches/{made['id']}")["completed_at"]
        )
        return {"batch_id": made["id"]}

    def new_schedule(self, key: str) -> dict[str, str]:
        """Make a schedule for the shared agent; return its route parameters."""
        said = [{"role": "user", "content": f"Later {CANARY}."}]
        body = {"messages": said, "schedule": {"type": "recurring", "cron_expression": "0 0 1 1 *"}}
        made = self.ask(key, "POST", f"/v1/agents/{self.shared['agent_id']}/schedule", json=body)
        return {"scheduled_message_id": made["id"]}

    def new_mcp_server(self, name: str) -> dict[str, str]:
        """Add an MCP server with one tool; return the route parameters of both."""
        config = {"mcp_server_type": "streamable_http", "server_url": self.mcp_url}
        made = self.ask(
            OPERATOR, "POST", "/v1/mcp-servers/", json={"server_name": name, "config": config}
        )
        (tool,) = self.ask(OPERATOR, "GET", f"/v1/mcp-servers/{made['id']}/tools")
        return {
            **{"mcp_server_id": made["id"], "mcp_server_name": name},
            **{"mcp_tool_id": tool["id"], "mcp_tool_name": tool["name"]},
        }

    def _talk(self) -> None:
        """Let Ada talk with the shared agent, which stores a passage; note all new ids."""
        agent = self.shared["agent_id"]
        made = self.ask(
            self.ada,
            "POST",
            "/v1/conversations/",
            params={"agent_id": agent},
            json={"summary": CANARY},
        )
        conversation = made["id"]
        self.server.says(
            call("archival_memory_insert", content=f"Passage {CANARY}.", tags=[f"tag-{CANARY}"]),
            call("memory_insert", label="notes", new_string=f"Four {CANARY}."),
            f"Noted {CANARY}.",
        )
        said = {
            "messages": [{"role": "user", "content": f"I say {CANARY}."}],
            "background": True,
            "streaming": True,
        }
        answer = self.send(
            self.ada, "POST", f"/v1/conversations/{conversation}/messages", json=said
        )
        assert "[DONE]" in answer.text, answer.text
        (run,) = self.ask(self.ada, "GET", "/v1/runs/", params={"conversation_id": conversation})
        (step, *_) = self.ask(self.ada, "GET", f"/v1/runs/{run['id']}/steps")
        messages = self.ask(self.ada, "GET", f"/v1/conversations/{conversation}/messages")
        (passage,) = self.ask(self.ada, "GET", f"/v1/agents/{agent}/archival-memory")
        filed = {"text": f"Also {CANARY}."}
        (another,) = self.ask(self.ada, "POST", f"/v1/agents/{agent}/archival-memory", json=filed)
        self.own |= {
            "conversation_id": conversation,
            "run_id": run["id"],
            "step_id": step["id"],
            "message_id": messages[-1]["id"],
            "memory_id": another["id"],
            "passage_id": passage["id"],
        }
        # Messages that name no conversation are in her default one.
        self.server.says(f"Aside {CANARY}.")
        picture = {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAAAAACw="}
        content = [
            {"type": "text", "text": f"I whisper {CANARY}."},
            {"type": "image", "source": picture},
        ]
        aside = {"messages": [{"role": "user", "content": content}]}
        self.ask(self.ada, "POST", f"/v1/agents/{agent}/messages", json=aside)
        whispered = self.ask(
            self.ada, "GET", f"/v1/agents/{agent}/messages", params={"order": "desc"}
        )
        self.own["picture_message_id"] = next(
            message["id"] for message in whispered if message["message_type"] == "user_message"
        )
        self.own |= (
            self.new_schedule(self.ada)
            | self.new_token(self.ada)
            | self.new_task_run()
            | self.new_batch()
        )

    def new_token(self, key: str) -> dict[str, str]:
        """Make an access token for the shared agent; return its route parameters."""
        policy = [{"type": "agent", "id": self.shared["agent_id"], "access": ["read_agent"]}]
        body: Wire = {"hostname": "https://app.example.org", "policy": policy}
        body["expires_at"] = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        self.ask(key, "POST", "/v1/client-side-access-tokens", json=body)
        (token, *_) = self.ask(key, "GET", "/v1/client-side-access-tokens")["tokens"]
        return {"token": token["token"]}

    def _upload(self) -> None:
        """Give the agent a folder of Ada's with an open file, and make her other files."""
        agent, made = self.shared["agent_id"], self.new_folder(CANARY, self.ada)
        self.ask(self.ada, "PATCH", f"/v1/agents/{agent}/folders/attach/{made['folder_id']}")
        self.ask(self.ada, "PATCH", f"/v1/agents/{agent}/files/{made['file_id']}/open")
        self.own |= made | self.new_file("diary.txt")
        self.ask(OPERATOR, "PUT", "/v1/workspace/files/all.txt", content="For all.")
        self.shared["shared_path"] = "all.txt"
        form = {"kind": "mem0", "agent": agent}
        memory = json.dumps([{"id": "1", "memory": f"Imported {CANARY}."}]).encode()
        brought = self.ask(
            self.ada, "POST", "/v1/imports", data=form, files={"file": ("memories.json", memory)}
        )
        wait_for(
            lambda: (
                self.ask(self.ada, "GET", f"/v1/imports/{brought['id']}")["status"] == "completed"
            )
        )
        self.own["import_id"] = brought["id"]

    def new_file(self, path: str) -> dict[str, str]:
        """Store a file in Ada's workspace; return its route parameters."""
        self.ask(self.ada, "PUT", f"/users/ada/workspace/files/{path}", content=f"Filed {CANARY}.")
        return {"file_path": path}

    def new_folder(self, name: str, key: str = OPERATOR) -> dict[str, str]:
        """Make a folder with a file; return the route parameters of both."""
        folder = self.ask(key, "POST", "/v1/folders/", json={"name": name, "description": CANARY})[
            "id"
        ]
        sent = {"file": (f"{CANARY}.txt", f"Five {CANARY}.".encode())}
        file = self.ask(key, "POST", f"/v1/folders/{folder}/upload", files=sent)["id"]
        place = f"/v1/folders/{folder}/files/{file}"
        wait_for(lambda: self.ask(key, "GET", place)["processing_status"] == "completed")
        return {"folder_id": folder, "file_id": file, "folder_name": name}

    def _remember(self) -> None:
        """Write a block of Ada's, make a proposal for it, and add a remote."""
        block = {
            "body": f"One {CANARY}.\n",
            "title": CANARY,
            "policy": "propose",
            "message": CANARY,
        }
        diary = self.ask(self.ada, "PUT", "/users/ada/blocks/diary", json=block)
        self.own["note_id"] = self.ask(self.ada, "GET", "/api/you/notes/")[0]["id"]
        made = self.ask(self.ada, "PUT", "/users/ada/blocks/notes", json=block)
        changed = self.ask(
            self.ada, "PUT", "/users/ada/blocks/notes", json={"body": f"One {CANARY}.\nTwo.\n"}
        )
        edit = {"old_string": "Two", "new_string": f"Three {CANARY}", "reasoning": CANARY}
        proposal = self.ask(self.ada, "POST", "/users/ada/blocks/notes/propose", json=edit)
        edit = {"old_string": "One", "new_string": f"Zero {CANARY}", "reasoning": CANARY}
        beside = self.ask(self.ada, "POST", "/users/ada/blocks/diary/propose", json=edit)
        place = self.server.settings.data_dir / "remotes" / f"{CANARY}.git"
        remote = self.ask(
            self.ada, "PUT", "/users/ada/remotes", json={"kind": "git", "address": str(place)}
        )
        wait_for(lambda: self.ask(self.ada, "GET", "/users/ada/remotes")[0]["last_at"])
        (*_, first) = self.ask(self.ada, "GET", "/users/ada/blocks/notes/history")
        self.own |= {
            "label": "notes",
            **self.new_forget_request(CANARY),
            "block_id": diary["id"],
            "sha": first["sha"],
            "diff_id": proposal["id"],
            "proposal_id": beside["id"],
            "remote_id": remote["id"],
        }
        assert changed["id"] == made["id"]
        self.ask(self.ada, "PUT", "/v1/users/ada/facts/policy", json={"policy": "off"})
        said = (
            "I study geology, which is about rocks, rivers, mountains, oceans and old volcanoes.",
            "My favourite food is pizza, with mushrooms, onions, olives, peppers and much cheese.",
            f"I like {CANARY} tea in the morning, at noon, in the afternoon and in the evening.",
        )
        for sentence in said:
            fact = self.ask(self.ada, "POST", "/v1/users/ada/facts", json={"sentence": sentence})
        self.own["fact_id"] = fact["id"]
        skill = f"/v1/users/ada/learning/{self.shared['course_name']}/skills/percent"
        words = {"words": f"I can do {CANARY}."}
        self.own["noted_id"] = self.ask(self.ada, "POST", f"{skill}/dispute", json=words)["id"]

        self.new_skill("lists", "users/ada/", self.ada)
        self.new_skill("lists", f"agents/{self.shared['agent_id']}/")
        self.shared |= self.new_skill("lists", "")

    def new_skill(self, name: str, owner: str, key: str = OPERATOR) -> dict[str, str]:
        """Make a skill; return its route parameters. `owner` is a part of the path."""
        secret = CANARY if key == self.ada else "nothing secret"
        content = f"---\nname: {name}\ndescription: Makes lists.\n---\n\nList {secret}.\n"
        self.ask(key, "PUT", f"/v1/{owner}skills/{name}", json={"content": content})
        return {"skill_name": name}

    def new_skill_proposal(self, path: str, values: Mapping[str, str]) -> dict[str, str]:
        """Make a skill with a proposal, for the kind of owner that the route's path names."""
        kind: Any = "organization"
        id = ""
        if "{user_id}" in path:
            kind, id = "user", self.id_of("ada")
        elif "{agent_id}" in path:
            kind, id = "agent", values["agent_id"]
        name = new_id("spare")
        scope = Scope(LOCAL_ORGANIZATION)
        author = Actor("agent", self.shared["agent_id"], "Agent")

        def work(tx: Transaction) -> tuple[Any, Any]:
            owner = skills.open_owner(tx, scope, kind, id, makes=True)
            by = Actor("administrator", "boss", "Boss")
            made = skills.put(tx, owner, a_skill(name), Submission(by, None, None))
            changed = a_skill(name, "Another.")
            metadata = ChangeMetadata(author, "So.")
            return made, skills.propose_by_agent(tx, owner, changed, metadata, None)

        made, proposed = self.server.write(work)
        return {
            "skill_name": name,
            "sha": made.block.head.hex(),
            "proposal_id": proposed.proposal.id,
        }

    def new_forget_request(self, text: str) -> dict[str, str]:
        """Let an agent ask that Ada's memory forgets something."""
        request = ForgetRequest("", LOCAL_ORGANIZATION, self.id_of("ada"), text)
        stored = self.server.write(lambda tx: forget_requests.add(tx, request))
        return {"forget_request_id": stored.id}

    @property
    def secrets(self) -> set[str]:
        """Return the texts that no other caller may see: Ada's canary, and the ids of her data."""
        hers = {
            value
            for name, value in self.own.items()
            if name not in ("user_id", "label", "student_id")
        }
        return {CANARY, self.ada_id, *hers}


def a_skill(name: str, body: str = "Mine.") -> Skill:
    return make_skill(f"---\nname: {name}\ndescription: Mine.\n---\n{body}\n", {})


def all_text(answer: httpx2.Response) -> str:
    """Return all text of a response, with packed content unpacked.

    That is headers, JSON, streams, zip archives and git packs.
    """
    body = answer.content
    found = [str(answer.headers.multi_items()), body.decode("utf-8", "replace")]
    if answer.headers.get("content-type", "").startswith("application/x-git"):
        # Streams of zlib begin with this byte; those in zip archives have no header.
        places = range(len(body) - 1)
        starts = [
            place
            for place in places
            if body[place] == 0x78 and (0x7800 + body[place + 1]) % 31 == 0
        ]
        for start in starts:
            try:
                found.append(
                    zlib.decompressobj().decompress(body[start:]).decode("utf-8", "replace")
                )
            except zlib.error:
                continue
    if body[:2] == b"PK":
        import io
        import zipfile

        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            found += [archive.read(name).decode("utf-8", "replace") for name in archive.namelist()]
            found += archive.namelist()
    return "\n".join(found)


def basic(user: str, key: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}


_SETTINGS: dict[str, Any] = {
    "api_key": OPERATOR,
    "traces": "all",
    "allow_private_providers": True,
}


@dataclass(frozen=True)
class _KeptWorld:
    """The folder of a stopped server, facts about it, and a function that ends its MCP server."""

    folder: Path
    known: dict[str, Any]
    close: Callable[[], None]

    def copy(self, folder: Path) -> dict[str, Any]:
        """Copy the folder, and point the remote to the copy; return the facts about it."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        with closing(sqlite3.connect(folder / "ricordo.db")) as database, database:
            database.execute(
                "UPDATE memory_remotes SET address = replace(address, ?, ?)",
                (str(self.folder), str(folder)),
            )
        shared = {**self.known["shared"], "remotes": str(folder / "remotes")}
        return {**self.known, "shared": shared, "own": dict(self.known["own"])}


_kept: list[_KeptWorld] = []


def _kept_world() -> _KeptWorld:
    """Return the world that this process made first.

    All others are copies, because making one takes ten times as long.
    """
    if not _kept:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="ricordo-world-")))
            mcp_url = stack.enter_context(raw_server(RawServer([mcp_tool("vuqkmcptool")])))
            with serving(folder, **_SETTINGS) as server, server.http() as http:
                world = World(server, http, mcp_url).fill()
            known = {name: getattr(world, name) for name in ("ada", "ada_id", "own", "shared")}
            _kept.append(_KeptWorld(folder, {**known, "mcp_url": mcp_url}, stack.pop_all().close))
    return _kept[0]


def forget_world() -> None:
    """Remove the world that was kept for copies, if there is one."""
    while _kept:
        _kept.pop().close()


@contextmanager
def open_world(folder: Path, **settings: Any) -> Iterator[World]:
    """Open a separate world.

    It is a copy of the world that this process made first. With settings it is made from the
    beginning.
    """
    bubblewrap()  # A route runs a tool in this sandbox.
    if not settings:
        known = _kept_world().copy(folder)
        with serving(folder, **_SETTINGS) as server, server.http() as http:
            yield World(server, http, **known)
        return
    served = raw_server(RawServer([mcp_tool("vuqkmcptool")]))
    with (
        serving(folder, **_SETTINGS, **settings) as server,
        server.http() as http,
        served as mcp_url,
    ):
        yield World(server, http, mcp_url).fill()


@contextmanager
def world_on(folder: Path, database: str) -> Iterator[World]:
    """Open a world on a database of this kind."""
    if database == "sqlite":
        with open_world(folder) as world:
            yield world
        return
    url = postgres.server().new_database()
    try:
        with open_world(folder, database_url=SecretStr(url), database_connections=4) as world:
            yield world
    finally:
        postgres.server().drop(url)
