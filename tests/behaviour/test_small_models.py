"""Agents with small models.

They have a short prompt, three tools and plain results, and the same memory and wire format as all
other agents.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.model import LIBRARIAN
from ricordo.settings import ProviderSettings
from tests.seams.scene import Scene, calls, kinds, returns, stopped, tools_of
from tests.seams.server import serving
from tests.support.model_server import Answer, ModelServer, Seen, say_ok
from tests.support.server_process import free_port

Wire = dict[str, Any]
USUAL = [
    "archival_memory_insert",
    "archival_memory_search",
    "conversation_search",
    "forget",
    "memory_insert",
    "memory_replace",
]
FACTS = ["remember", "correct"]


def small(scene: Scene, *, value: str = "Her name is Ada.", **body: Any) -> str:
    """Make an agent with the usual tools, the usual prompt and a small model."""
    blocks = [{"label": "persona", "value": "I am Nina."}, {"label": "human", "value": value}]
    given = {
        "include_base_tools": True,
        "system": None,
        "memory_blocks": blocks,
        "model_profile": "small",
    }
    return scene.agent(**(given | body))


def human(scene: Scene, agent: str) -> str:
    return next(
        block["value"] for block in scene.state(agent)["blocks"] if block["label"] == "human"
    )


def base_prompt(body: Wire) -> str:
    return str(body["messages"][0]["content"].partition("<memory_blocks>")[0])


def test_a_small_model_gets_a_short_prompt_and_few_tools_while_the_api_shows_the_agents(
    scene: Scene,
) -> None:
    agent = small(scene)
    scene.says("Hello.")

    scene.send(agent, "Hi!")

    (asked,) = scene.asked
    assert set(tools_of(asked)) - {"search"} == set(FACTS)
    assert len(base_prompt(asked)) // 4 <= 130
    assert "AGENT_ID" not in asked["messages"][0]["content"]
    for tool in asked["tools"]:
        assert "For example {" in tool["function"]["description"]
    state = scene.state(agent)
    assert sorted(tool["name"] for tool in state["tools"]) == USUAL
    assert state["system"].startswith("<base_instructions>")


def test_facts_remembered_and_corrected_by_a_small_model_are_block_versions(scene: Scene) -> None:
    agent = small(scene)
    scene.says(calls(("remember", {"fact": "- Works as a nurse and lives in Graz."})), "Noted.")
    answer = scene.send(agent, "I work as a nurse and live in Graz.")
    assert kinds(answer) == ["tool_call", "tool_return", "assistant"]
    assert returns(answer) == [("success", "Noted: Works as a nurse and lives in Graz.")]
    scene.says(calls(("correct", {"old": "Graz", "new": "Vienna"})), "Changed.")
    scene.send(agent, "I moved to Vienna.")

    assert human(scene, agent) == "Her name is Ada.\nWorks as a nurse and lives in Vienna."
    # The results are plain text, without an envelope and without the rest of the block.
    results = [one["content"] for one in scene.asked[-1]["messages"] if one["role"] == "tool"]
    assert results == [
        "Noted: Works as a nurse and lives in Graz.",
        "Changed: Works as a nurse and lives in Graz. -> Works as a nurse and lives in Vienna.",
    ]
    block = next(one for one in scene.state(agent)["blocks"] if one["label"] == "human")
    history = scene.http.get(f"/v1/blocks/{block['id']}/history").json()
    assert len(history) >= 3


@pytest.mark.parametrize(
    ("call", "value", "result"),
    [
        (("remember", {"fact": "Lives in Rome."}), "Name is Ada.\nLives in Rome.", "Changed: Lives in Turin. -> Lives in Rome."),
        (("remember", {"fact": "name is ada"}), "Name is Ada.\nLives in Turin.", "That is in your notes already."),
        (("remember", {"fact": "Likes tea.\nHas a cat."}), "Name is Ada.\nLives in Turin.\nLikes tea.\nHas a cat.", "Noted: "),
        (("correct", {"old": "lives in Turin", "new": ""}), "Name is Ada.", "Struck out: Lives in Turin."),
        (("correct", {"old": "Turin", "new": "Rome"}), "Name is Ada.\nLives in Rome.", "Changed: "),
        (("correct", {"old": "her home", "new": "Lives in Rome"}), "Name is Ada.\nLives in Rome", "Changed: "),
        (("correct", {"old": "the cat", "new": "Has a dog."}), "Name is Ada.\nLives in Turin.\nHas a dog.", "Noted: "),
        (("correct", {"old": "the cat", "new": ""}), "Name is Ada.\nLives in Turin.", "There is no such note."),
        (("correct", {"old": "", "new": "x"}), "Name is Ada.\nLives in Turin.", "old is empty"),
        (("remember", {"fact": " "}), "Name is Ada.\nLives in Turin.", "There is nothing to note"),
    ],
)  # fmt: skip
def test_a_fact_replaces_the_one_that_it_makes_untrue(
    scene: Scene, call: tuple[str, Wire], value: str, result: str
) -> None:
    agent = small(scene, value="Name is Ada.\nLives in Turin.")
    scene.says(calls(call), "All right.")

    answer = scene.send(agent, "Listen.")

    assert human(scene, agent) == value
    assert returns(answer)[0][1].startswith(result)


@pytest.mark.parametrize(
    "change",
    [
        {"include_base_tools": False, "tools": ["memory_insert", "conversation_search"]},
        {"tool_rules": [{"type": "requires_approval", "tool_name": "memory_insert"}]},
        {"system": "Call memory_insert for each fact."},
        {"model_profile": "full"},
        {"model_profile": "auto"},
    ],
)
def test_an_agent_with_chosen_tools_or_a_large_model_keeps_its_tools(
    scene: Scene, change: Wire
) -> None:
    agent = small(scene, **change)
    scene.says("Hello.")

    scene.send(agent, "Hi!")

    assert "remember" not in tools_of(scene.asked[-1])
    assert "memory_insert" in tools_of(scene.asked[-1])


def test_other_tools_and_a_custom_prompt_are_kept_with_the_three_tools(scene: Scene) -> None:
    agent = small(scene, tools=["roll"], system="You play.")
    scene.says(calls(("roll", {"sides": 4}), ("remember", {"fact": "Likes dice."})), "Four.")

    answer = scene.send(agent, "Roll!")

    assert set(tools_of(scene.asked[0])) - {"search"} == {"roll", *FACTS}
    assert base_prompt(scene.asked[0]).startswith("You play.")
    assert [status for status, _ in returns(answer)] == ["success", "success"]
    assert human(scene, agent).endswith("Likes dice.")


@pytest.mark.parametrize("policy", ["direct", "guarded", "explicit", "propose", "read_only"])
def test_the_blocks_policy_decides_what_a_small_models_edit_becomes(
    scene: Scene, policy: str
) -> None:
    user = f"lena-{policy}"
    answer = scene.http.put(
        f"/users/{user}/blocks/human", json={"body": "Her name is Lena.", "policy": policy}
    )
    assert answer.status_code < 300, answer.text
    agent = small(scene, user_id=user, memory_blocks=[{"label": "persona", "value": "I am Nina."}])
    scene.says(calls(("remember", {"fact": "Likes tea."})), "All right.")

    outcome = scene.send(agent, "I like tea.")

    assert stopped(outcome) == "end_turn"
    text = scene.http.get(f"/users/{user}/blocks/human").json()["body"]
    waiting = scene.http.get(f"/users/{user}/diffs").json()
    is_applied = policy in ("direct", "guarded")
    assert ("Likes tea." in text) == is_applied
    assert len(waiting) == (policy in ("explicit", "propose"))


def test_only_a_small_model_gets_changed_lines_as_results_of_memory_tools(
    scene: Scene,
) -> None:
    block = "\n".join(f"Fact {number}." for number in range(200))
    for profile in ("small", "full"):
        body = {"include_base_tools": False, "tools": ["memory_insert"], "model_profile": profile}
        agent = small(scene, value=block, **body)
        scene.says(
            calls(("memory_insert", {"label": "human", "new_string": "Likes tea."})), "Noted."
        )

        answer = scene.send(agent, "I like tea.")

        # Clients get the block's whole text, as from the retired Letta V1 server.
        assert returns(answer)[0][1] == f"{block}\nLikes tea."
        (result,) = [one["content"] for one in scene.asked[-1]["messages"] if one["role"] == "tool"]
        if profile == "small":
            assert result == "Saved: Likes tea."
        else:
            assert json.loads(result)["message"] == f"{block}\nLikes tea."


def test_the_librarian_has_its_own_tools_in_every_profile(scene: Scene) -> None:
    agent = small(scene, model=LIBRARIAN)

    scene.send(agent, "I live in Turin.")

    assert "I live in Turin." in human(scene, agent)
    assert not scene.asked


def test_the_profile_follows_the_model_and_the_agents_setting(scene: Scene) -> None:
    agent = small(scene, model_profile=None)
    assert scene.state(agent)["model_profile"] is None
    scene.says("One.", "Two.", "Three.")
    scene.send(agent, "Hi!")
    assert "memory_insert" in tools_of(scene.asked[-1])
    assert scene.change(agent, model_profile="small")["model_profile"] == "small"
    scene.send(agent, "Hi!")
    assert "remember" in tools_of(scene.asked[-1])
    scene.change(agent, model_profile="auto")
    scene.send(agent, "Hi!")
    assert "memory_insert" in tools_of(scene.asked[-1])
    assert base_prompt(scene.asked[-1]).startswith("<base_instructions>")


@pytest.mark.parametrize(
    ("body", "bound"),
    [({}, 16_384), ({"model_profile": "small"}, 1_024), ({"max_tokens": 333}, 333)],
)
def test_a_limit_of_the_answer_is_always_sent(scene: Scene, body: Wire, bound: int) -> None:
    agent = small(scene, **({"model_profile": None} | body))
    before = scene.state(agent)["model_settings"]
    scene.says("Hello.")

    scene.send(agent, "Hi!")

    assert scene.asked[-1].get("max_tokens", scene.asked[-1].get("max_completion_tokens")) == bound
    # The limit applies to each call and is not a setting of the agent. If none is set, the API
    # shows the retired server's default.
    after = scene.state(agent)["model_settings"]
    assert after == before
    assert after["max_output_tokens"] == body.get("max_tokens", 16_384)
    scene.http.patch(f"/v1/agents/{agent}", json={"model_profile": "small"}).raise_for_status()
    scene.says("Hello.")
    scene.send(agent, "And now?")
    assert scene.asked[-1].get(
        "max_tokens", scene.asked[-1].get("max_completion_tokens")
    ) == body.get("max_tokens", 1_024)


@pytest.mark.parametrize("lists", ["at once", "never", "with an error"])
def test_the_first_turn_after_a_start_knows_the_models_size_from_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str
) -> None:
    seconds = 0.05 if lists == "never" else 60
    monkeypatch.setattr("ricordo.llm.registry.organization_providers.LOOK_UP_SECONDS", seconds)
    port = free_port()
    providers = ProviderSettings.model_construct(llamacpp_base_url=f"http://127.0.0.1:{port}/v1")
    rows = {"data": [{"id": "weights.gguf", "meta": {"n_ctx": 32_000, "n_params": 1.5e9}}]}
    answer = {
        "at once": Answer(rows),
        "never": Answer(rows, delay=60),
        "with an error": Answer({}, 500),
    }[lists]

    def otherwise(seen: Seen) -> Answer:
        return (
            answer
            if seen.method == "GET" and len(asked)
            else Answer(rows)
            if seen.method == "GET"
            else say_ok(seen)
        )

    asked: list[Wire] = []
    for _ in range(2):
        model = ModelServer(otherwise)
        with (
            serving(tmp_path, providers=providers, model=LIBRARIAN, model_retries=0) as server,
            server.http() as http,
        ):
            server.run(model.start(port))
            agents = http.get("/v1/agents/").json()
            body = {"model": "llamacpp/weights.gguf", "memory_blocks": []}
            agent = agents[0]["id"] if agents else http.post("/v1/agents/", json=body).json()["id"]
            said = {"messages": [{"role": "user", "content": "My dog is called Rex."}]}
            assert http.post(f"/v1/agents/{agent}/messages", json=said).status_code == 200
            asked.append(
                next(
                    seen.body for seen in model.requests if seen.path.endswith("/chat/completions")
                )
            )
            server.run(model.stop())
    assert set(FACTS) <= set(tools_of(asked[0]))
    assert (set(FACTS) <= set(tools_of(asked[1]))) == (lists == "at once")
