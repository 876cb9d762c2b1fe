"""Policies of blocks: a canary in each part of the prompt, and the texts that each provider got."""

from typing import Any

import httpx2
import pytest

from tests.features.egress.providers import CLOUD, LOCAL, World, says
from tests.seams.http import ok, refused

SECRET = "Has the illness vuq-moved 17"


def agent_of(http: httpx2.Client, *blocks: tuple[str, str], model: str = CLOUD, **more: Any) -> str:
    memory = [{"label": label, "value": value} for label, value in blocks]
    body = {"model": model, "memory_blocks": memory, **more}
    return str(ok(http.post("/v1/agents/", json=body))["id"])


def block_of(http: httpx2.Client, agent: str, label: str) -> str:
    return str(ok(http.get(f"/v1/agents/{agent}/core-memory/blocks/{label}"))["id"])


def allow(http: httpx2.Client, path: str, *names: str) -> Any:
    return ok(http.put(f"/v1/{path}/egress", json={"allowed": list(names)}))


def say(http: httpx2.Client, agent: str, text: str, **more: Any) -> list[Any]:
    body = {"messages": [{"role": "user", "content": text}], **more}
    messages: list[Any] = ok(http.post(f"/v1/agents/{agent}/messages", json=body))["messages"]
    return messages


def switch(http: httpx2.Client, agent: str, model: str) -> None:
    ok(http.patch(f"/v1/agents/{agent}", json={"model": model}))


def test_a_withheld_block_is_mentioned_but_its_text_is_not_sent(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Likes tea.\nHas the illness vuq-block."))
    policy = allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    assert policy["allowed"] == ["local"]
    say(http, agent, "Hello.")
    assert "[2 lines withheld from openai by an egress policy]" in world.cloud.last
    assert not world.cloud.saw("vuq-block")
    assert not world.cloud.saw("Likes tea.")
    switch(http, agent, LOCAL)
    say(http, agent, "Hello again.")
    assert world.local.saw("vuq-block")
    assert "withheld" not in world.local.last


def test_a_policy_allows_the_named_providers_or_none(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("one", "Text vuq-named."), ("two", "Text vuq-nobody."))
    allow(http, f"blocks/{block_of(http, agent, 'one')}", "openai")
    allow(http, f"blocks/{block_of(http, agent, 'two')}")
    say(http, agent, "Hello.")
    assert world.cloud.saw("vuq-named")
    assert not world.cloud.saw("vuq-nobody")
    switch(http, agent, LOCAL)
    say(http, agent, "Hello.")
    assert not world.local.saw("vuq-named")
    assert not world.local.saw("vuq-nobody")


def test_an_answer_made_from_a_restricted_block_is_withheld_too(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Has the illness vuq-told."), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    world.local.script.extend(
        [
            says(
                "Let me note vuq-told.",
                ("memory_insert", {"label": "human", "new_string": "Fears vuq-edit."}),
            ),
            says("You have vuq-told, and in other words vuq-paraphrase."),
        ]
    )
    say(http, agent, "What do you know of me?")
    switch(http, agent, CLOUD)
    say(http, agent, "Repeat what you said.")
    sent = world.cloud.last
    for canary in ("vuq-told", "vuq-edit", "vuq-paraphrase"):
        assert not world.cloud.saw(canary), canary
    assert "What do you know of me?" in sent
    assert "[1 message withheld from openai by an egress policy]" in sent
    switch(http, agent, LOCAL)
    say(http, agent, "And now?")
    for canary in ("vuq-told", "vuq-edit", "vuq-paraphrase"):
        assert canary in world.local.last, canary


def test_copies_of_a_withheld_line_are_withheld_everywhere(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(
        http,
        ("human", "Her code word is vuq-copied."),
        ("notes", "Likes tea.\n- Her code word is vuq-copied.\nLikes maths."),
        model=LOCAL,
    )
    say(http, agent, "Remember: her code word is vuq-copied.")
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")
    assert not world.cloud.saw("vuq-copied")
    assert "Likes maths." in world.cloud.last


def test_a_model_cannot_edit_a_block_that_is_withheld_from_it(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Has the illness vuq-kept."))
    block = block_of(http, agent, "human")
    allow(http, f"blocks/{block}", "local")
    world.cloud.script.append(
        says("", ("memory_rethink", {"label": "human", "new_memory": "Nothing."}))
    )
    say(http, agent, "Forget it.")
    assert ok(http.get(f"/v1/blocks/{block}"))["value"] == "Has the illness vuq-kept."


def test_restricted_text_cannot_be_copied_into_a_less_restricted_block(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "Has the illness vuq-moved."), ("notes", ""), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    world.local.script.append(
        says("", ("memory_insert", {"label": "notes", "new_string": "Has the illness vuq-moved."}))
    )
    say(http, agent, "Note it.")
    notes = ok(http.get(f"/v1/blocks/{block_of(http, agent, 'notes')}"))
    assert notes["value"] == ""
    assert "egress policy allows fewer destinations" in world.local.last


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("memory", {"command": "rename", "path": "notes", "description": SECRET}),
        ("memory", {"command": "rename", "old_path": "notes", "new_path": SECRET}),
        ("memory", {"command": "rename", "old_path": "notes", "new_path": "vuq-moved_17"}),
        (
            "memory",
            {
                "command": "rename",
                "old_path": "notes",
                "new_path": "plans",
                "description": f"Kept: {SECRET}",
            },
        ),
        ("memory", {"command": "create", "path": SECRET.replace(" ", "_"), "file_text": "Tea"}),
        ("archival_memory_insert", {"content": "Likes tea.", "tags": ["tea", "vuq-moved 17"]}),
    ],
)
def test_neither_a_description_nor_a_name_gets_it(
    world: World, http: httpx2.Client, tool: str, arguments: dict[str, Any]
) -> None:
    agent = agent_of(http, ("human", SECRET), ("notes", "Tea."), model=LOCAL, tools=[tool])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    world.local.script.append(says("", (tool, arguments)))
    say(http, agent, "Note it.")
    switch(http, agent, CLOUD)
    say(http, agent, "Hello.")
    assert "egress policy" in world.local.last
    assert not world.cloud.saw("vuq")
    assert ok(http.get(f"/v1/blocks/{block_of(http, agent, 'notes')}"))["value"] == "Tea."


def test_names_and_descriptions_without_it_are_saved(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", SECRET), ("notes", "Tea."), model=LOCAL, tools=["memory"])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    arguments = {
        "command": "rename",
        "old_path": "notes",
        "new_path": "drinks",
        "description": "Drinks that are liked",
    }
    # A block with the same policy may get the text.
    described = {"command": "rename", "path": "human", "description": f"Of one who {SECRET}"}
    world.local.script.append(says("", ("memory", arguments), ("memory", described)))
    say(http, agent, "Note it.")
    drinks = ok(http.get(f"/v1/blocks/{block_of(http, agent, 'drinks')}"))
    assert drinks["description"] == "Drinks that are liked"
    human = ok(http.get(f"/v1/blocks/{block_of(http, agent, 'human')}"))
    assert human["description"] == f"Of one who {SECRET}"


def test_a_step_records_its_destination_and_what_was_shown_or_withheld(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "One line."), ("notes", "Two\nlines."), model=CLOUD)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "openai")
    allow(http, f"blocks/{block_of(http, agent, 'notes')}", "local")
    say(http, agent, "Hello.")
    (step,) = ok(http.get("/v1/steps/", params={"agent_id": agent}))
    record = ok(http.get(f"/v1/steps/{step['id']}/egress"))
    assert record["destination"] == "openai"
    assert record["is_local"] is False
    assert record["shown"] == ["block:human"]
    assert record["withheld"] == {"block:notes": 2}


def test_the_egress_preview_lists_what_another_model_would_not_see(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", "One line."), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    say(http, agent, "Hello.")
    own = ok(http.get(f"/v1/agents/{agent}/egress"))
    assert (own["provider"], own["is_local"], own["withheld"]) == ("vllm", True, [])
    other = ok(http.get(f"/v1/agents/{agent}/egress", params={"model": CLOUD}))
    assert (other["provider"], other["is_local"]) == ("openai", False)
    assert {"source": "block:human", "lines": 1} in other["withheld"]
    # The answer that the model made from the block is withheld too.
    assert len(other["withheld"]) == 2
    assert not world.cloud.bodies


def test_a_policy_with_an_invalid_provider_name_is_refused(
    http: httpx2.Client, world: World
) -> None:
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    path = f"/v1/blocks/{block_of(http, agent, 'human')}/egress"
    assert "is not a name of a provider" in refused(http.put(path, json={"allowed": ["a;b"]}), 400)
    assert world.cloud.bodies == []
