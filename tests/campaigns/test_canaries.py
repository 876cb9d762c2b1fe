"""The canary campaign: random permitted calls of many callers on one server.

Users, services, a developer and an administrator call. Every text that a user sends holds a canary
word of that user. No response to another caller may hold it, in any form: headers, JSON, streams,
zip archives, git packs, searches, refusals. The prompt of another user's turn must not hold it
either. The ids in the calls come from all callers, so a caller also asks for objects that it may
not read.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import ROLE_SCOPES
from ricordo.llm.scripted import Line, call
from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.seams.people import OPERATOR, People, all_text, bearer
from tests.seams.routes import HEADERS, Cell, cells_of
from tests.seams.server import MODEL, serving

USERS = ("ada", "bea", "cleo")
ADMINISTRATOR = "amos"
PREFIX = "vuqkzoq"
TOOLS = [
    *("memory_insert", "memory_replace", "memory_rethink", "memory", "core_memory_append"),
    *("archival_memory_insert", "archival_memory_search", "conversation_search"),
]
IDS = re.compile(
    r"\b(agent|conv|run|step|message|block|archive|passage|proposal|remote|job|provider|tool)-[0-9a-f-]{36}"
)
PARAMETERS = {"conversation": "conv", "diff": "proposal", "memory": "passage"}
SHA = re.compile(r'"sha": ?"([0-9a-f]{40})"|([0-9a-f]{40}) (?:HEAD|refs/heads/main)')
LABELS = ("notes", "human", "persona", "plans/week")
# Calls that delete agents or erase users would end the campaign early, and other hosts are not
# called.
LEFT_OUT = re.compile(
    r"DELETE /users/{user_id}|DELETE /v1/(agents|archives)/{\w+}|.*/providers.*|PUT .*/remotes"
    r"|PATCH /v1/agents/{agent_id}/(tools|archives)/.*|DELETE /v1/agents/{agent_id}/.*users.*"
    r"|.*(/v1/keys|/v1/users|/v1/identities|/login|/session).*"
)


@dataclass
class Caller:
    """A caller with its headers, and the owner of the canary words that it may read.

    The owner is one user, no user, or (for an administrator) everybody.
    """

    name: str
    headers: Mapping[str, str]
    scopes: frozenset[str]
    user: str | None = None
    sees_all: bool = False
    names_by_path: bool = False


@dataclass
class Campaign:
    """The server with its callers, the observed ids, and the leaks that were found."""

    people: People
    callers: list[Caller]
    cells: list[Cell]
    dice: random.Random
    known: dict[str, list[str]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """The names of the users by id."""

    def step(self, number: int) -> None:
        """Make one call, and look for other users' canary words in the response."""
        caller = self.dice.choice(self.callers)
        cell = self.dice.choice(
            [cell for cell in self.cells if not caller.scopes.isdisjoint(cell.scopes)]
        )
        values = Values(self, caller)
        named = values["user_id"] if "{user_id}" in cell.path else None
        # With the user's name in the path, the key acts for this user.
        if caller.names_by_path and named:
            caller = replace(caller, user=named)
        words = (
            f"{canary(caller.user) if caller.user else 'anybody' if caller.sees_all else 'nobody'} "
            f"zebra {number}"
        )
        asked = cell.parts(values)
        asked["params"] = {
            name: PREFIX if value == "vuqkzoqada" else value
            for name, value in asked["params"].items()
        }
        if "json" in asked:
            asked["json"] = self._said(asked["json"], words)
        answer = self.people.http.request(
            **asked, headers={**HEADERS.get(cell.path, {}), **caller.headers}
        )
        told = all_text(answer)
        if not caller.sees_all:
            self.leaks += [
                f"call {number}, {caller.name}, {cell.method} {asked['url']}: {other}"
                for other in USERS
                if other != caller.user and canary(other) in told
            ]
        self.done[f"{cell.method} {cell.path} {answer.status_code // 100}xx"] += 1
        assert answer.status_code < 500, (cell, answer.text)
        self.learn(told)

    def model(self, request: ModelRequest) -> Line:
        """Check the prompt for foreign canary words, and answer with a random call or a text."""
        told = "\n".join(f"{message.text} {message.parts!r}" for message in request.messages)
        found = [user for user in USERS if canary(user) in told]
        if len(found) > 1:
            self.leaks.append(f"a prompt holds words of {found}")
        last = next(
            (message.text for message in reversed(request.messages) if message.role == "user"), ""
        )
        # A user may repeat a request that was first sent without a user. So the turn's user is read
        # from the model request.
        asker = self.ids.get(request.user_id or "", "nobody")
        if found and asker not in (*found, ADMINISTRATOR):
            self.leaks.append(f"the prompt of {asker}'s turn holds words of {found}")
        if request.messages[-1].role != "user" and self.dice.random() < 0.6:
            return f"Noted, {last[:80]}"
        words = f"{canary(found[0]) if len(found) == 1 else 'nobody'} zebra {self.dice.random()}"
        offered = {tool.name for tool in request.tools}
        return self._tool_call(words, offered)

    def _tool_call(self, words: str, offered: set[str]) -> Line:
        label = self.dice.choice(LABELS)
        choices: list[tuple[str, dict[str, Any]]] = [
            ("memory_insert", {"label": label, "new_string": words}),
            ("memory_rethink", {"label": label, "new_memory": words}),
            ("core_memory_append", {"label": label, "content": words}),
            ("archival_memory_insert", {"content": words, "tags": [words.replace(" ", "-")]}),
            ("archival_memory_search", {"query": f"{PREFIX} zebra"}),
            ("conversation_search", {"query": f"{PREFIX} zebra"}),
            (
                "memory",
                {
                    "command": "create",
                    "path": f"/memories/{self.dice.choice(('plans', 'facts'))}",
                    "file_text": words,
                    "description": words,
                },
            ),
        ]
        name, arguments = self.dice.choice(
            [choice for choice in choices if choice[0] in offered] or choices
        )
        return call(name, **arguments)

    def _said(self, given: Any, words: str) -> Any:
        """Return the body with the caller's canary word in all free texts.

        Searches ask for everybody's words.
        """
        if isinstance(given, list):
            return [self._said(one, words) for one in given]
        if isinstance(given, dict):
            said = {name: self._said(one, words) for name, one in given.items()}
            return said | ({"query": f"{PREFIX} zebra"} if "query" in said else {})
        return words if given in ("Mine.", "text", "Hello.", "Mine", "Zero", "So.") else given

    def learn(self, told: str) -> None:
        for match in IDS.finditer(told):
            self._know(match[1], match[0])
        for match in SHA.finditer(told):
            self._know("sha", match[1] or match[2])

    def _know(self, kind: str, id: str) -> None:
        known = self.known.setdefault(kind, [])
        if id not in known:
            known.append(id)


class Values(dict[str, str]):
    """Values of path parameters, chosen from all ids that any caller has seen."""

    def __init__(self, campaign: Campaign, caller: Caller) -> None:
        super().__init__()
        self._campaign, self._caller = campaign, caller

    def __missing__(self, name: str) -> str:
        self[name] = chosen = self._choose(name)
        return chosen

    def _choose(self, name: str) -> str:
        dice, known = self._campaign.dice, self._campaign.known
        if name == "user_id":
            # A caller who may act for others does so by the header only, which names an existing
            # user.
            return (
                self._caller.user
                if self._caller.user and dice.random() < 0.7
                else dice.choice(USERS)
            )
        if name in ("label", "block_label"):
            return dice.choice(LABELS)
        if name == "tool_name":
            return dice.choice(TOOLS)
        kind = name.removesuffix("_id")
        ids = known.get(PARAMETERS.get(kind, kind)) or ["none"]
        return dice.choice(ids[-6:] if kind == "sha" else ids)


def canary(user: str | None) -> str:
    return f"{PREFIX}{user}"


def run_campaign(folder: Path, seed: int, calls: int) -> Counter[str]:
    """Make this number of calls; return the counts by kind of call.

    Raises AssertionError with the seed and the leaks.
    """
    with serving(folder, api_key=OPERATOR, traces="all") as server, server.http() as http:
        people = People(server, http)
        campaign = Campaign(people, [], [], random.Random(seed))  # noqa: S311
        server.answers_with(campaign.model)
        campaign.cells = [
            cell
            for cell in cells_of(server.app)
            if cell.scopes and not LEFT_OUT.fullmatch(f"{cell.method} {cell.path}")
        ]
        keys = {user: people.key(user) for user in USERS}
        service = people.key("tutor", "service")
        who = [Caller(user, bearer(key), ROLE_SCOPES["user"], user) for user, key in keys.items()]
        who += [
            Caller(
                f"tutor for {user}",
                {**bearer(service), "x-ricordo-user": user},
                ROLE_SCOPES["service"],
                user,
            )
            for user in USERS[:2]
        ]
        who += [Caller("tutor", bearer(service), ROLE_SCOPES["service"], names_by_path=True)]
        who += [Caller("dora", bearer(people.key("dora", "developer")), ROLE_SCOPES["developer"])]
        who += [
            Caller(
                ADMINISTRATOR,
                bearer(people.key(ADMINISTRATOR, "admin")),
                ROLE_SCOPES["admin"],
                sees_all=True,
            )
        ]
        campaign.callers = who
        campaign.ids = {people.id_of(name): name for name in (*USERS, "dora", ADMINISTRATOR)}
        begin(campaign, keys)
        for number in range(calls):
            campaign.step(number)
        assert campaign.leaks == [], f"seed {seed}: {campaign.leaks[:10]}"
        return campaign.done


def begin(campaign: Campaign, keys: Mapping[str, str]) -> None:
    """Make two agents that everybody uses, and some data of each user."""
    people = campaign.people
    blocks = [{"label": "persona", "value": "I teach."}, {"label": "human", "value": "Nobody yet."}]
    for name in ("Tutor", "Coach"):
        made = people.send(
            OPERATOR,
            "POST",
            "/v1/agents/",
            json={
                "model": MODEL,
                "name": name,
                "tools": TOOLS,
                "include_base_tools": False,
                "memory_blocks": blocks,
            },
        )
        campaign.learn(made.text)
    for user, key in keys.items():
        body = {"body": f"One {canary(user)} zebra.\n", "title": canary(user), "policy": "propose"}
        campaign.learn(people.send(key, "PUT", f"/users/{user}/blocks/notes", json=body).text)
        for agent in campaign.known["agent"]:
            words = {"summary": f"{canary(user)} zebra"}
            made = people.send(
                key, "POST", "/v1/conversations/", params={"agent_id": agent}, json=words
            )
            campaign.learn(made.text)
            said = {
                "messages": [{"role": "user", "content": f"{canary(user)} zebra"}],
                "streaming": False,
            }
            path = f"/v1/conversations/{made.json()['id']}/messages"
            campaign.learn(people.send(key, "POST", path, json=said).text)


@pytest.mark.parametrize(("seed", "calls"), short_and_long((1, 150), (None, 10_000)))
def test_no_word_of_a_user_is_told_to_another(
    tmp_path: Path, seed: int | None, calls: int, record_property: RecordProperty
) -> None:
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    record_property("seed", seed)
    done = run_campaign(tmp_path, seed, calls)
    answered = {name.rsplit(" ", 1)[0] for name in done if name.endswith("2xx")}
    assert len(answered) > min(70, calls / 5), sorted(answered)
