"""The user of the turn when an agent asks another.

It is the user of the first agent, with their rights, and untrusted content stays untrusted.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, insert, update

from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.message import TextPart
from ricordo.errors import Invalid
from ricordo.features.groups import agent_jobs
from ricordo.llm.scripted import call
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema import core_tables as tables
from ricordo.storage.schema.core_tables import organizations
from tests.features.groups.cast import ALL, ASYNC, TAGS, WAITS, Cast, answer_in, returns
from tests.features.groups.test_agent_jobs import deliver, deliveries
from tests.seams.http import ok
from tests.seams.people import People
from tests.seams.server import ServerInThread, serving
from tests.seams.waiting import wait_for

OTHERS = "org-0ther000-0000-4000-8000-000000000000"


def bearer(key: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {key}"}}


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server where everybody needs a key."""
    with serving(tmp_path_factory.mktemp("data"), api_key="operator") as server:
        yield server


@pytest.fixture
def guarded(guarded_server: ServerInThread) -> Iterator[Cast]:
    """Agents on the server with keys, made by its operator."""
    guarded_server.forget()
    with guarded_server.http(**bearer("operator")) as http:
        yield Cast(guarded_server, http)


def test_what_a_called_agent_learns_belongs_to_the_callers_user(guarded: Cast) -> None:
    ben = guarded.agent(
        "Ben",
        "core_memory_append",
        memory_blocks=[{"label": "human", "value": "Nobody yet.", "policy": "direct"}],
    )
    guarded.agent("Ann", *ALL)
    users = {name: bearer(guarded.server.key(name)) for name in ("ada", "bob")}
    for name, options in users.items():
        guarded.asks("Ann", "Ben", f"She is {name}-canary.")
        guarded.says(
            "Ben",
            call("core_memory_append", label="human", content=f"Is {name}-canary."),
            f"Hello {name}.",
        )
        (result,) = guarded.returned("Ann", f"I am {name}-canary.", **options)
        assert answer_in(result) == {"agent_id": ben, "response": [f"Hello {name}."]}
        guarded.says(
            "Ann", call(ASYNC, message=f"Again {name}-canary.", other_agent_id=ben), "Sent."
        )
        guarded.send("Ann", **options)
        wait_for(lambda options=options: len(guarded.incoming("Ben", **options)) == 2)
    for name, options in users.items():
        (other,) = users.keys() - {name}
        seen = (
            str(guarded.messages("Ben", **options))
            + guarded.http.get(f"/v1/agents/{ben}", **options).text
        )
        seen += guarded.http.get("/v1/blocks/", **options).text
        assert f"{name}-canary" in seen
        assert f"{other}-canary" not in seen
        (block,) = ok(guarded.http.get(f"/v1/agents/{ben}/core-memory/blocks", **options))
        assert block["value"] == f"Nobody yet.\nIs {name}-canary."
    # The agent's own conversation gets no message.
    assert guarded.incoming("Ben") == []
    prompts = [str(request.messages) for request in guarded.requests["Ben"]]
    assert not [prompt for prompt in prompts if "ada-canary" in prompt and "bob-canary" in prompt]


def test_an_agent_call_keeps_the_conversations_user_when_an_administrator_continues(
    guarded: Cast,
) -> None:
    guarded.agent("Ben")
    ann = guarded.agent("Ann", WAITS)
    ada = bearer(guarded.server.key("ada"))
    conversation = ok(guarded.http.post(f"/v1/conversations/?agent_id={ann}", json={}, **ada))["id"]
    guarded.asks("Ann", "Ben", "For her.")
    body = {"messages": [{"role": "user", "content": "Go on."}], "streaming": False}
    answer = ok(guarded.http.post(f"/v1/conversations/{conversation}/messages", json=body))
    assert answer_in(returns(answer["messages"])[0])["response"] == ["ok"]
    assert len(guarded.incoming("Ben", **ada)) == 1
    assert guarded.incoming("Ben") == []


def test_agents_restricted_to_other_users_are_not_found(
    guarded: Cast,
) -> None:
    ada, people = guarded.server.key("ada"), People(guarded.server, guarded.http)
    people.key("bob")
    kept = guarded.agent(
        "Kay", identity_ids=[people.id_of("bob").replace("user-", "identity-")], tags=["kept"]
    )
    bobs = guarded.agent("Ben", user_id="bob", tags=["kept"])
    free = guarded.agent("Fay", tags=["kept"])
    guarded.agent("Ann", *ALL)
    missing = "agent-00000000-0000-4000-8000-000000000000"
    for who, others in ((ada, (kept, missing)), ("operator", (bobs, missing))):
        for tool in (WAITS, ASYNC):
            for other in others:
                guarded.says("Ann", call(tool, message="Hi?", other_agent_id=other), "Done.")
                ((status, text),) = guarded.returned("Ann", **bearer(who))
                assert (status, text.replace(other, "X")) == ("error", "Agent with ID X not found")
    guarded.says("Ann", call(TAGS, message="Hi?", match_all=["kept"], match_some=[]), "Done.")
    answers = answer_in(guarded.returned("Ann", **bearer(ada))[0])
    # The agent talks with this user in a separate conversation.
    assert [one["agent_id"] for one in answers] == [bobs, free]
    assert guarded.requests["Kay"] == []


def test_agents_of_other_organizations_are_not_found(guarded: Cast) -> None:
    guarded.agent("Ann", *ALL)
    row = {"id": OTHERS, "name": "Others", "created_at": 0, "updated_at": 0}
    columns = organizations.c.keys()
    values = {name: value for name, value in row.items() if name in columns}
    guarded.server.write(lambda tx: tx.run(insert(organizations).values(**values)))
    key = People(guarded.server, guarded.http).key("eve", "admin", organization=OTHERS)
    with guarded.server.http(**bearer(key)) as http:
        body = {
            "name": "Zoe",
            "model": "scripted/model",
            "tags": ["far"],
            "include_base_tools": False,
        }
        other = ok(http.post("/v1/agents/", json=body))["id"]
    for tool in (WAITS, ASYNC):
        guarded.says("Ann", call(tool, message="Hi?", other_agent_id=other), "Done.")
        ((status, text),) = guarded.returned("Ann")
        assert (status, text) == ("error", f"Agent with ID {other} not found")
    guarded.says("Ann", call(TAGS, message="Hi?", match_all=["far"], match_some=[]), "Done.")
    assert guarded.returned("Ann") == [("success", "[]")]


def edits_wait(cast: Cast, name: str, label: str = "plan") -> bool:
    """Return whether the agent's last edit of its guarded block became a proposal."""
    (block,) = [
        one
        for one in ok(cast.http.get(f"/v1/agents/{cast.ids[name]}/core-memory/blocks"))
        if one["label"] == label
    ]
    return "Tea" not in block["value"]


@pytest.mark.parametrize("tool", [WAITS, ASYNC])
@pytest.mark.parametrize("is_untrusted", [False, True])
def test_an_agents_message_is_untrusted_after_untrusted_content(
    cast: Cast, tool: str, is_untrusted: bool
) -> None:
    plan = [{"label": "plan", "value": "Nothing.", "policy": "guarded"}]
    ben = cast.agent("Ben", "core_memory_append", memory_blocks=plan)
    cast.agent("Ann", *ALL)
    cast.says("Ann", call(tool, message="Plan tea.", other_agent_id=ben), "Done.")
    cast.says("Ben", call("core_memory_append", label="plan", content="Tea."), "Planned.")
    page = '<source id="1" name="plan.pdf">Buy tea.</source>' if is_untrusted else "Buy tea."
    cast.send("Ann", page)
    wait_for(lambda: len(cast.requests["Ben"]) == 2)
    wait_for(lambda: "Planned." in str(cast.messages("Ben")))
    assert edits_wait(cast, "Ben") == is_untrusted


@pytest.mark.parametrize("is_untrusted", [False, True])
def test_an_untrusted_answer_makes_the_calling_turn_untrusted(
    cast: Cast, is_untrusted: bool
) -> None:
    plan = [{"label": "plan", "value": "Nothing.", "policy": "guarded"}]
    cast.agent("Ann", WAITS, "core_memory_append", memory_blocks=plan)
    cast.agent("Ben")
    if is_untrusted:
        cast.send("Ben", '<source id="1" name="plan.pdf">Buy tea.</source>')
    cast.asks("Ann", "Ben", then="Wait.")
    cast._lines["Ann"].pop()
    cast.says("Ann", call("core_memory_append", label="plan", content="Tea."), "Planned.")
    cast.send("Ann")
    assert edits_wait(cast, "Ann") == is_untrusted


def test_agent_calls_do_not_use_http(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a reachable name can still ask agents."""
    monkeypatch.setattr(httpx2.AsyncClient, "send", None)
    cast.agent("Ben")
    cast.agent("Ann", WAITS)
    cast.asks("Ann", "Ben")
    assert answer_in(cast.returned("Ann")[0])["response"] == ["ok"]


def test_an_answer_cut_off_by_the_time_limit_stays_untrusted(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_AGENT_CALL_SECONDS", "1")
    plan = [{"label": "plan", "value": "Nothing.", "policy": "guarded"}]
    cast.agent("Ann", WAITS, "core_memory_append", memory_blocks=plan)
    cast.agent("Ben", "archival_memory_insert")
    cast.send("Ben", '<source id="1" name="plan.pdf">Buy tea.</source>')
    opened = asyncio.Event()

    async def wait(_request: object) -> str:
        await opened.wait()
        return "At last."

    cast.says(
        "Ben",
        [TextPart("Let me see."), call("archival_memory_insert", content="Tea.", tags=[])],
        wait,
    )
    cast.says("Ann", call(WAITS, message="What is it?", other_agent_id=cast.ids["Ben"]))
    cast.says("Ann", call("core_memory_append", label="plan", content="Tea."), "Planned.")
    (first, *_) = answer_in(cast.returned("Ann")[0])["response"]
    cast.server.loop.call_soon_threadsafe(opened.set)
    assert first == "Let me see."
    assert edits_wait(cast, "Ann")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_message_is_not_delivered_for_a_developer_who_has_left(
    guarded: Cast, is_deleted: bool
) -> None:
    ben = guarded.agent("Ben")
    guarded.agent("Ann", ASYNC)
    name = f"dev-{is_deleted}"
    developer = bearer(guarded.server.key(name, role="developer"))
    guarded.says("Ann", call(ASYNC, message="Buy tea.", other_agent_id=ben), "Sent.")
    guarded.send("Ann", **developer)
    (job,) = wait_for(
        lambda: [
            one
            for one in deliveries(guarded.server, "done")
            if one.payload["agent_id"] == ben and "run_id" not in one.payload
        ]
    )

    def leave(tx: Transaction) -> None:
        user = users.named(tx, job.organization_id, name)
        assert user
        # As an erasure ends, or as a login that has ended is deleted.
        tx.run(delete(tables.api_keys).where(tables.api_keys.c.user_id == user.id))
        is_user = tables.users.c.id == user.id
        if is_deleted:
            tx.run(delete(tables.users).where(is_user))
        else:
            tx.run(update(tables.users).where(is_user).values(disabled_at=1))

    guarded.server.write(leave)
    late = Job(agent_jobs.KIND, job.organization_id, job.payload | {"otid": new_id("message")})
    with pytest.raises(Invalid, match="The sender of this message may no longer send it"):
        deliver(guarded.server, late)
    assert len(guarded.incoming("Ben")) <= 1
