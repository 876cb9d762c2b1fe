"""Policies of blocks: a canary in each part of the prompt, and what each provider got."""

from typing import Any

import httpx2

from tests.features.egress.providers import CLOUD, LOCAL, World, says
from tests.seams.http import ok, refused


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


def test_a_withheld_block_is_named_and_its_text_stays_here(
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


def test_a_policy_may_name_providers_and_an_empty_one_allows_none(
    world: World, http: httpx2.Client
) -> None:
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


def test_an_answer_that_an_allowed_model_made_of_it_is_withheld_later(
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


def test_a_copy_of_a_withheld_line_is_withheld_wherever_it_stands(
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


def test_a_withheld_block_cannot_be_edited_by_a_model_that_does_not_see_it(
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


def test_a_model_that_sees_it_cannot_copy_it_into_a_block_that_more_may_see(
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


def test_a_step_records_what_went_where(world: World, http: httpx2.Client) -> None:
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


def test_before_a_switch_the_preview_says_what_would_be_withheld(
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


def test_a_policy_name_must_be_a_name(http: httpx2.Client, world: World) -> None:
    agent = agent_of(http, ("human", "Text."), model=LOCAL)
    path = f"/v1/blocks/{block_of(http, agent, 'human')}/egress"
    assert "is not a name of a provider" in refused(http.put(path, json={"allowed": ["a;b"]}), 400)
    assert world.cloud.bodies == []
