"""Requests about a user.

The tests cover the default conversation, filters by `user_id`, shared blocks, and allowed changes.
"""

from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import Wire, ok, refused
from tests.seams.server import MODEL

BLOCKS: list[Wire] = [
    {"label": "human", "value": "Nobody is known."},
    {"label": "rules", "value": "Be kind.", "read_only": True},
    {"label": "course", "value": "The exam is in May.", "shared": True},
]


@pytest.fixture
def agent_id(api: Api) -> str:
    return str(
        ok(api.http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": BLOCKS}))["id"]
    )


def acting(user: str) -> dict[str, str]:
    return {"x-ricordo-user": user}


def say(api: Api, agent_id: str, words: str, user: str | None = None, **query: Any) -> Wire:
    sent = {"messages": [{"role": "user", "content": words}]}
    headers = acting(user) if user else {}
    answer: Wire = ok(
        api.http.post(f"/v1/agents/{agent_id}/messages", json=sent, headers=headers, params=query)
    )
    return answer


NAMES = ("Zoë", "李雷", "عمر", "Ada Lovelace", "ada@example.org", "100%")


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        *((name, quote(name).encode()) for name in NAMES),
        *((name, name.encode()) for name in NAMES),
        ("Zoë", "Zoë".encode("latin-1")),
    ],
)
def test_a_name_in_any_letters_is_the_same_user_in_the_header(
    api: Api, agent_id: str, name: str, sent: bytes
) -> None:
    ok(api.http.put(f"/users/{quote(name)}/blocks/human", json={"body": "Likes chess."}))
    users = ok(api.http.get("/v1/users/"))
    header = [(b"x-ricordo-user", sent)]
    listed = ok(api.http.get(f"/users/{quote(name)}/blocks", headers=header))
    assert [block["body"] for block in listed] == ["Likes chess."]
    say_as = {"messages": [{"role": "user", "content": "Hello"}]}
    ok(api.http.post(f"/v1/agents/{agent_id}/messages", json=say_as, headers=header))
    assert ok(api.http.get("/v1/users/")) == users


def said(listed: list[Wire]) -> list[str]:
    return [str(one["content"]) for one in listed if one["message_type"] == "user_message"]


def key_of(api: Api, user: str) -> httpx2.Client:
    return api.server.http(headers=acting(user))


def test_routes_of_the_default_conversation_use_the_callers_own(api: Api, agent_id: str) -> None:
    path = f"/v1/agents/{agent_id}"
    with key_of(api, "ada") as ada, key_of(api, "bob") as bob:
        say(api, agent_id, "For all.")
        api.server.says(
            call("memory_insert", label="human", new_string="Ada drinks tea."), "Noted."
        )
        say(api, agent_id, "I am Ada.", "ada")
        own = ok(ada.get(f"/v1/conversations/default?agent_id={agent_id}"))
        assert said(ok(ada.get(f"{path}/messages"))) == ["I am Ada."]
        assert said(ok(ada.get(f"/v1/conversations/default/messages?agent_id={agent_id}"))) == [
            "I am Ada."
        ]
        assert ok(ada.get(path))["message_ids"] == own["in_context_message_ids"]
        assert "Ada drinks tea." in ok(ada.post(f"{path}/recompile", params={"dry_run": True}))
        assert "Ada drinks tea." in ok(ada.post(f"{path}/recompile"))
        assert "Ada drinks tea." in ok(ada.get(f"{path}/context"))["core_memory"]
        past = {"messages": [{"role": "user", "content": "I was in Rome."}]}
        ok(ada.post(f"{path}/messages/import", json=past))
        query = {"query": "Rome", "agent_id": agent_id}
        for conversation in ({}, {"conversation_id": "default"}):
            found = [
                str(ok(one.post("/v1/messages/search", json=query | conversation)))
                for one in (ada, bob)
            ]
            assert ["Rome" in text for text in found] == [True, False]
        # Bob has sent nothing. His conversation is empty, and he sees nothing of Ada's.
        assert said(ok(bob.get(f"{path}/messages"))) == []
        assert "tea" not in ok(bob.get(f"{path}/context"))["core_memory"]
        assert "No active runs" in refused(ada.post(f"{path}/messages/cancel"), 409)
        ok(ada.patch(f"{path}/reset-messages"))
        assert said(ok(ada.get(f"{path}/messages"))) == []
        assert said(ok(api.http.get(f"{path}/messages"))) == ["For all."]
        ok(bob.patch(f"{path}/reset-messages"))
        assert ok(api.http.get("/v1/conversations/", params={"agent_id": agent_id})) == []


def test_a_user_reads_and_forks_a_shared_conversation_but_cannot_write_in_it(
    api: Api, agent_id: str
) -> None:
    shared = ok(api.http.post("/v1/conversations/", params={"agent_id": agent_id}))["id"]
    with key_of(api, "ada") as ada:
        assert ok(ada.get(f"/v1/conversations/{shared}"))["user_id"] is None
        path = f"/v1/conversations/{shared}"
        sent = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
        for refusal in (
            ada.post(f"{path}/messages", json=sent),
            ada.patch(path, json={"summary": "Mine"}),
            ada.delete(path),
            ada.post(f"{path}/recompile"),
            ada.post(f"{path}/cancel"),
            ada.post(f"{path}/compact"),
            ada.post(
                f"/v1/agents/{agent_id}/messages/import",
                json={"messages": sent["messages"], "conversation_id": shared},
            ),
        ):
            assert "shared" in refused(refusal, 403)
        fork = ok(ada.post(f"{path}/fork"))
        assert (
            fork["user_id"]
            == ok(ada.post("/v1/conversations/", params={"agent_id": agent_id}))["user_id"]
        )
        api.server.says("Hello Ada.")
        ok(ada.post(f"/v1/conversations/{fork['id']}/messages", json=sent))
        assert "Your key" in refused(
            ada.post("/v1/conversations/", params={"agent_id": agent_id}, json={"user_id": "bob"}),
            403,
        )


def test_user_id_is_applied_or_refused_and_never_ignored(api: Api, agent_id: str) -> None:
    made = [
        ok(
            api.http.post(
                "/v1/conversations/", params={"agent_id": agent_id}, json={"user_id": one}
            )
        )
        for one in "xy"
    ]
    ok(api.http.post("/v1/conversations/", params={"agent_id": agent_id}))
    say(api, agent_id, "It is x.", user_id="x")
    for user, one in zip("xy", made, strict=True):
        listed = ok(
            api.http.get("/v1/conversations/", params={"agent_id": agent_id, "user_id": user})
        )
        assert [found["id"] for found in listed] == [one["id"]]
        runs = ok(api.http.get("/v1/runs/", params={"agent_id": agent_id, "user_id": user}))
        assert len(runs) == (user == "x")
    assert said(ok(api.http.get(f"/v1/agents/{agent_id}/messages", params={"user_id": "x"}))) == [
        "It is x."
    ]
    assert said(ok(api.http.get(f"/v1/agents/{agent_id}/messages"))) == []
    assert "no user" in refused(api.http.get("/v1/runs/", params={"user_id": "z"}), 404)
    with key_of(api, "somebody-new") as new:
        assert [
            one["user_id"]
            for one in ok(new.get("/v1/conversations/", params={"agent_id": agent_id}))
        ] == [None]
    with key_of(api, "x") as x:
        assert len(ok(x.get("/v1/runs/", params={"agent_id": agent_id, "user_id": "x"}))) == 1
        assert "another user" in refused(x.get("/v1/runs/", params={"user_id": "y"}), 403)
    for query in ({"user_id": "x"}, {"user_id": "y"}):
        found = ok(
            api.http.post(
                "/v1/messages/search", json={"query": "It is x", "agent_id": agent_id, **query}
            )
        )
        assert ("It is x." in str(found)) == (query["user_id"] == "x")


def test_every_route_shows_whether_a_block_is_shared_and_a_users_block_cannot_be(
    api: Api, agent_id: str
) -> None:
    path = f"/v1/agents/{agent_id}/core-memory/blocks"
    assert {one["label"]: one["shared"] for one in ok(api.http.get(path))} == {
        "human": False,
        "rules": False,
        "course": True,
    }
    block = ok(
        api.http.post("/v1/blocks/", json={"label": "news", "value": "None.", "shared": True})
    )
    assert block["shared"]
    assert ok(api.http.get(f"/v1/blocks/{block['id']}"))["shared"]
    # A block in everybody's prompt is guarded by default.
    assert block["policy"] == "guarded"
    chosen = {"label": "open", "value": "None.", "shared": True, "policy": "direct"}
    assert ok(api.http.post("/v1/blocks/", json=chosen))["policy"] == "direct"
    plain = ok(api.http.post("/v1/blocks/", json={"label": "plain", "value": "None."}))
    assert plain["policy"] == "direct"
    assert (
        ok(api.http.patch(f"/v1/blocks/{plain['id']}", json={"shared": True}))["policy"]
        == "guarded"
    )
    assert not ok(api.http.patch(f"/v1/blocks/{block['id']}", json={"shared": False}))["shared"]
    assert ok(api.http.patch(f"{path}/human", json={"shared": True}))["shared"]
    own = ok(api.http.put("/users/ada/blocks/diary", json={"body": "Mine."}))
    assert "cannot be shared" in refused(
        api.http.patch(f"/v1/blocks/{own['id']}", json={"shared": True}, headers=acting("ada")), 400
    )


def test_a_users_change_over_http_is_made_in_the_users_copy(api: Api, agent_id: str) -> None:
    path = f"/v1/agents/{agent_id}/core-memory/blocks/human"
    with key_of(api, "ada") as ada:
        changed = ok(ada.patch(path, json={"value": "It is Ada."}))
        assert ok(ada.get(path)) == ok(ada.get(f"/v1/blocks/{changed['id']}"))
        assert ok(ada.get(path))["value"] == "It is Ada."
    assert ok(api.http.get(path))["value"] == "Nobody is known."


def test_an_agent_has_a_policy_for_its_users_new_blocks(api: Api, agent_id: str) -> None:
    assert ok(api.http.get(f"/v1/agents/{agent_id}"))["user_block_policy"] == "propose"
    changed = ok(api.http.patch(f"/v1/agents/{agent_id}", json={"user_block_policy": "guarded"}))
    assert changed["user_block_policy"] == "guarded"
    made = ok(api.http.post("/v1/agents/", json={"model": MODEL, "user_block_policy": "direct"}))
    assert made["user_block_policy"] == "direct"
    assert (
        api.http.patch(
            f"/v1/agents/{agent_id}", json={"user_block_policy": "read_only"}
        ).status_code
        == 422
    )


def test_streams_and_asynchronous_messages_use_the_users_conversation(
    api: Api, agent_id: str
) -> None:
    path, sent = f"/v1/agents/{agent_id}", {"messages": [{"role": "user", "content": "It is Ada."}]}
    with key_of(api, "ada") as ada, key_of(api, "bob") as bob:
        streamed = ada.post(f"{path}/messages/stream", json={**sent, "background": True})
        assert "data: [DONE]" in streamed.text
        again = ada.post("/v1/conversations/default/stream", json={"agent_id": agent_id})
        assert "data: [DONE]" in again.text
        run = ok(ada.post(f"{path}/messages/async", json=sent))
        assert "data: [DONE]" in ada.post(f"/v1/runs/{run['id']}/stream").text  # it has ended
        assert said(ok(ada.get(f"{path}/messages"))) == ["It is Ada."] * 2
        for id in (run["id"], ok(ada.get("/v1/runs/", params={"agent_id": agent_id}))[-1]["id"]):
            assert "not found" in refused(bob.get(f"/v1/runs/{id}"), 404)
            assert "not found" in refused(bob.post(f"/v1/runs/{id}/stream"), 404)
            assert "not found" in refused(bob.delete(f"/v1/runs/{id}"), 404)
        assert (
            bob.post("/v1/conversations/default/stream", json={"agent_id": agent_id}).status_code
            == 404
        )
        # A repeated message is answered once, in the user's conversation.
        headers = {"x-stainless-retry-count": "1"}
        first = ok(ada.post(f"{path}/messages", json=sent))
        assert (
            ok(ada.post(f"{path}/messages", json=sent, headers=headers))["messages"]
            == first["messages"]
        )
        assert len(said(ok(ada.get(f"{path}/messages")))) == 3


def test_an_agent_created_for_one_user_does_not_show_anothers_attached_block(api: Api) -> None:
    put = {"body": "Ada keeps a zebra.", "description": "Hers"}
    hers = ok(api.http.put("/users/ada/blocks/human", json=put))["id"]
    own = ok(api.http.put("/users/bob/blocks/goals", json={"body": "Bob learns Greek."}))["id"]
    given = {
        "model": MODEL,
        "memory_blocks": BLOCKS[1:],
        "block_ids": [hers, own],
        "user_id": "bob",
    }
    made = ok(api.http.post("/v1/agents/", json=given))
    assert own in [block["id"] for block in made["memory"]["blocks"]]
    with key_of(api, "bob") as bob:
        seen = [
            made,
            ok(bob.get(f"/v1/agents/{made['id']}")),
            ok(bob.get(f"/v1/agents/{made['id']}/messages")),
        ]
    assert ["zebra" in str(one) for one in seen] == [False] * 3
    assert "Bob learns Greek." in str(seen[2])


def test_a_users_attached_block_is_shown_only_in_that_users_conversations(
    api: Api, agent_id: str
) -> None:
    path = f"/v1/agents/{agent_id}"
    hers = ok(
        api.http.put(
            "/users/ada/blocks/diary", json={"body": "Ada keeps a zebra.", "agent_id": "agent-x"}
        )
    )["id"]
    ok(api.http.patch(f"{path}/core-memory/blocks/attach/{hers}"))
    shared = ok(api.http.post("/v1/conversations/", params={"agent_id": agent_id}))["id"]
    say(api, agent_id, "Hello.")
    made = ok(api.http.post("/v1/agents/", json={"model": MODEL, "block_ids": [hers]}))
    with key_of(api, "ada") as ada, key_of(api, "bob") as bob:
        for http in (api.http, bob, ada):
            seen = [
                http.get(path).text,
                http.get(f"{path}/core-memory").text,
                http.get(f"{path}/core-memory/blocks").text,
                http.get(f"{path}/core-memory/blocks/diary").text,
                http.get(f"{path}/context").text,
                http.get(f"/v1/agents/{made['id']}").text,
                http.post(f"{path}/recompile", params={"dry_run": True}).text
                if http is not bob
                else "",
            ]
            assert ["zebra" in text for text in seen] == [http is ada] * 7, seen
        read = [
            api.http.get(f"/v1/conversations/{shared}/messages").text,
            ada.get(f"/v1/conversations/{shared}/messages").text,
            api.http.get(f"{path}/messages").text,
            str(made),
            str([one.messages for one in api.server.model.requests]),
        ]
        assert ["zebra" in text for text in read] == [False] * 5
        say(api, agent_id, "Hello.", "ada")
        assert "zebra" in api.server.model.requests[-1].messages[0].text
    # The agent has Ada's block, which other callers cannot see. So the label is taken, and an
    # update with a list of block ids keeps the block.
    other = ok(api.http.post("/v1/blocks/", json={"label": "diary", "value": "Ours."}))["id"]
    assert "diary" in refused(api.http.patch(f"{path}/core-memory/blocks/attach/{other}"), 409)
    ok(api.http.patch(path, json={"block_ids": []}))
    assert [one["id"] for one in ok(api.http.get(f"/v1/blocks/{hers}/agents"))] == [
        made["id"],
        agent_id,
    ]
    ok(api.http.patch(f"{path}/core-memory/blocks/detach/{hers}"))
    assert ok(api.http.get(path, headers=acting("ada")))["memory"]["blocks"] == []


def test_all_routes_show_the_same_blocks_of_an_agent_about_a_user(api: Api) -> None:
    given: list[Wire] = [*BLOCKS, {"label": "plan", "value": "None.", "tags": ["a", "b"]}]
    asked = {"model": MODEL, "memory_blocks": given}
    agents = [
        ok(api.http.post("/v1/agents/", json={**asked, "name": name}))["id"]
        for name in ("One", "Two")
    ]
    agents.append(ok(api.http.post("/v1/agents/", json={**asked, "user_id": "eve"}))["id"])
    ok(api.http.put("/users/eve/blocks/rules", json={"body": "Eve's rules."}))
    ok(api.http.put("/users/eve/blocks/course", json={"body": "Eve's course."}))
    for agent_id in agents:
        api.server.says(
            call("memory_insert", label="human", new_string=f"Eve drinks {agent_id}."), "Noted."
        )
        say(api, agent_id, "I drink it.", "eve")
        say(api, agent_id, "Hello.", "dan")
    for agent_id in agents:
        path = f"/v1/agents/{agent_id}"
        for about in (
            {},
            {"headers": acting("eve")},
            {"headers": acting("dan")},
            {"params": {"user_id": "eve"}},
        ):
            agent, core, listed = [
                ok(api.http.get(f"{path}{route}", **about))
                for route in ("", "/core-memory", "/core-memory/blocks")
            ]
            shown = {block["label"]: block for block in listed}
            assert len(shown) == len(listed) == 4
            assert {block["label"]: block for block in agent["memory"]["blocks"]} == shown
            assert {block["label"]: block for block in core["blocks"]} == shown
            assert shown["plan"]["tags"] == ["a", "b"]
            context = ok(api.http.get(f"{path}/context", **about))["core_memory"]
            for label, block in shown.items():
                assert ok(api.http.get(f"{path}/core-memory/blocks/{label}", **about)) == block
                assert f"<value>\n{block['value']}\n</value>" in context


def test_a_users_agents_are_filtered_and_sorted_by_the_users_own_turns(
    api: Api, agent_id: str
) -> None:
    other = str(ok(api.http.post("/v1/agents/", json={"model": MODEL}))["id"])
    with key_of(api, "zoe") as zoe:
        say(api, other, "I am Zoe.", "zoe")
        say(api, agent_id, "For all.")
        query = {"last_stop_reason": "end_turn"}
        assert [found["id"] for found in ok(zoe.get("/v1/agents/", params=query))] == [other]
        say(api, agent_id, "I am Zoe.", "zoe")
        say(api, other, "For all.")
        newest = ok(zoe.get("/v1/agents/", params={"order_by": "last_run_completion", "limit": 2}))
        assert [found["id"] for found in newest] == [agent_id, other]
        ok(
            api.http.post(
                "/v1/identities/",
                json={"identifier_key": "yan", "name": "Yan", "identity_type": "user"},
            )
        )
        with key_of(api, "yan") as yan:
            assert ok(yan.get("/v1/agents/", params=query)) == []
