"""The nine kinds of tool rules, for native agents and for heartbeat agents."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.seams.scene import Scene, Wire, calls, kinds, returns, said, speech, stopped, tools_of
from tests.support.model_server import Answer

MORE = {"request_heartbeat": True}


@dataclass
class Player:
    """An agent of one of the two styles, with its way to end a turn."""

    scene: Scene
    is_native: bool

    def agent(self, *tools: str, rules: list[Wire], **body: Any) -> str:
        if self.is_native:
            return self.scene.agent(*tools, tool_rules=rules, **body)
        return self.scene.agent(
            "send_message", *tools, agent_type="memgpt_v2_agent", tool_rules=rules, **body
        )

    def ends(self, words: str = "Done.") -> str | Answer:
        return words if self.is_native else speech(words)

    def offered(self, number: int = -1) -> list[str]:
        return [name for name in tools_of(self.scene.asked[number]) if name != "send_message"]


@pytest.fixture(params=["native", "heartbeat"])
def player(request: pytest.FixtureRequest, scene: Scene) -> Player:
    return Player(scene, request.param == "native")


def rule(kind: str, tool: str, **options: Any) -> Wire:
    return {"type": kind, "tool_name": tool, **options}


def test_run_first_limits_the_first_call_and_sets_its_arguments(
    player: Player, scene: Scene
) -> None:
    agent = player.agent("roll", "toss", rules=[rule("run_first", "roll", args={"sides": 20})])
    scene.says(calls(("roll", {"sides": 4} | MORE)), player.ends())

    answer = scene.send(agent, "Play.")

    assert (tools_of(scene.asked[0]), scene.asked[0]["tool_choice"]) == (["roll"], "required")
    assert player.offered(1) == ["roll", "toss"]
    assert scene.games.played == [("roll", 20)]
    assert '"sides":20' in answer["messages"][0]["tool_call"]["arguments"]
    assert said(answer) == ["Done."]


def test_exit_loop_ends_the_turn_after_its_tool(player: Player, scene: Scene) -> None:
    agent = player.agent("roll", rules=[rule("exit_loop", "roll")])
    scene.says(calls(("roll", MORE)))
    answer = scene.send(agent, "Roll.")
    assert (stopped(answer), kinds(answer)) == ("tool_rule", ["tool_call", "tool_return"])


def test_exit_loop_does_not_end_the_turn_if_its_tool_failed(player: Player, scene: Scene) -> None:
    agent = player.agent("stumble", rules=[rule("exit_loop", "stumble")])
    scene.says(calls(("stumble", {})), player.ends("I fell."))
    assert said(scene.send(agent, "Walk.")) == ["I fell."]


def test_continue_loop_continues_after_its_tool(player: Player, scene: Scene) -> None:
    agent = player.agent("roll", rules=[rule("continue_loop", "roll")])
    scene.says(calls(("roll", {})), player.ends("Six."))
    assert said(scene.send(agent, "Roll.")) == ["Six."]


@pytest.mark.parametrize(("sides", "next_tool"), [(1, "toss"), (2, "draw"), (7, "draw")])
def test_conditional_follows_the_tools_result_or_its_default(
    player: Player, scene: Scene, sides: int, next_tool: str
) -> None:
    options = {"child_output_mapping": {"1": "toss", "2": "draw"}, "default_child": "draw"}
    agent = player.agent("roll", "toss", "draw", rules=[rule("conditional", "roll", **options)])
    scene.says(calls(("roll", {"sides": sides})), calls((next_tool, MORE)), player.ends())

    scene.send(agent, "Play.")

    assert (tools_of(scene.asked[1]), scene.asked[1]["tool_choice"]) == ([next_tool], "required")
    assert scene.played == ["roll", next_tool]


def test_if_the_rules_allow_no_tool_the_agent_answers_without_tools(
    player: Player, scene: Scene
) -> None:
    options = {"child_output_mapping": {"1": "toss"}, "require_output_mapping": True}
    agent = player.agent("roll", "toss", rules=[rule("conditional", "roll", **options)])
    scene.says(calls(("roll", {"sides": 7} | MORE)), "It is seven.")

    answer = scene.send(agent, "Play.")

    assert (said(answer), stopped(answer)) == (["It is seven."], "end_turn")
    assert "tools" not in scene.asked[-1]
    scene.says(player.ends("Here."))
    assert said(scene.send(agent, "Are you there?")) == ["Here."]


def test_constrain_child_tools_limits_the_next_call_and_sets_its_arguments(
    player: Player, scene: Scene
) -> None:
    nodes = [{"name": "roll", "args": {"sides": 12}}]
    rules = [
        rule("constrain_child_tools", "toss", children=["roll", "draw"], child_arg_nodes=nodes)
    ]
    agent = player.agent("roll", "toss", "draw", rules=rules)
    scene.says(calls(("toss", {})), calls(("roll", {"sides": 6} | MORE)), player.ends())

    scene.send(agent, "Play.")

    assert (sorted(tools_of(scene.asked[1])), scene.asked[1]["tool_choice"]) == (
        ["draw", "roll"],
        "required",
    )
    assert player.offered(2) == ["roll", "toss", "draw"]
    assert ("roll", 12) in scene.games.played


def test_max_count_per_step_removes_the_tool(player: Player, scene: Scene) -> None:
    agent = player.agent(
        "roll", "toss", rules=[rule("max_count_per_step", "roll", max_count_limit=2)]
    )
    scene.says(calls(("roll", MORE)), calls(("roll", MORE)), player.ends(), player.ends("Again."))

    scene.send(agent, "Play.")
    assert [player.offered(number) for number in range(3)] == [
        ["roll", "toss"],
        ["roll", "toss"],
        ["toss"],
    ]
    scene.send(agent, "Once more.")
    assert player.offered() == ["roll", "toss"]


def test_parent_last_tool_allows_its_children_only_right_after_it(
    player: Player, scene: Scene
) -> None:
    agent = player.agent(
        "roll", "toss", rules=[rule("parent_last_tool", "roll", children=["toss"])]
    )
    scene.says(calls(("roll", {})), calls(("toss", MORE)), player.ends())

    scene.send(agent, "Play.")

    assert [player.offered(number) for number in range(3)] == [["roll"], ["toss"], ["roll"]]


def test_required_before_exit_continues_the_turn(player: Player, scene: Scene) -> None:
    agent = player.agent("roll", rules=[rule("required_before_exit", "roll")])
    scene.says(player.ends("Bye."), calls(("roll", MORE)), player.ends("Rolled."))

    answer = scene.send(agent, "Bye.")

    assert said(answer)[-1] == "Rolled."
    assert scene.played == ["roll"]
    assert any(
        "roll" in str(message["content"])
        for message in scene.asked[1]["messages"]
        if message["role"] == "user"
    )


def test_a_model_that_ignores_a_required_tool_is_soon_stopped(scene: Scene) -> None:
    agent = scene.agent("roll", tool_rules=[rule("required_before_exit", "roll")])
    scene.says("Bye.", "I said bye.")
    assert stopped(scene.send(agent, "Bye.")) == "no_tool_call"


def test_requires_approval_holds_the_call(player: Player, scene: Scene) -> None:
    agent = player.agent("roll", rules=[rule("requires_approval", "roll")])
    scene.says(calls(("roll", MORE)))

    answer = scene.send(agent, "Roll.")

    assert (kinds(answer), stopped(answer), scene.played) == (
        ["approval_request"],
        "requires_approval",
        [],
    )


def test_with_ordering_rules_calls_are_made_one_at_a_time(player: Player, scene: Scene) -> None:
    agent = player.agent("roll", "toss", rules=[rule("run_first", "roll")])
    scene.says(calls(("roll", MORE), ("roll", MORE)), player.ends())

    answer = scene.send(agent, "Play.")

    assert scene.asked[0]["parallel_tool_calls"] is False
    assert scene.played == ["roll"]
    assert [status for status, _ in returns(answer)][:2] == ["success", "error"]


def test_rules_are_described_in_the_system_prompt(player: Player, scene: Scene) -> None:
    rules = [
        rule("exit_loop", "roll"),
        rule(
            "max_count_per_step",
            "toss",
            max_count_limit=1,
            prompt_template="Toss {{ max_count_limit }} time only.",
        ),
    ]
    agent = player.agent("roll", "toss", rules=rules)
    scene.says(player.ends())
    scene.send(agent, "Hello.")
    system = scene.asked[0]["messages"][0]["content"]
    section = system[system.index("<tool_usage_rules>") : system.index("</tool_usage_rules>")]
    assert "Calling roll finishes your turn." in section
    assert "Toss 1 time only." in section


def test_fixed_arguments_that_do_not_fit_the_tool_end_the_turn(
    player: Player, scene: Scene
) -> None:
    agent = player.agent("roll", rules=[rule("run_first", "roll", args={"sides": "many"})])
    scene.says(calls(("roll", MORE)))

    answer = scene.send(agent, "Roll.")

    assert stopped(answer) == "invalid_tool_call"
    assert scene.played == []
    ((status, text),) = returns(answer)
    assert status == "error"
    assert "does not fit its schema" in text
    run = scene.http.get(f"/v1/runs/{answer['usage']['run_ids'][0]}").json()
    assert (run["status"], run["stop_reason"]) == ("failed", "invalid_tool_call")


@pytest.mark.parametrize(
    "rules",
    [
        [rule("run_first", "draw")],
        [rule("required_before_exit", "draw")],
        [
            rule("max_count_per_step", "roll", max_count_limit=0),
            rule("required_before_exit", "roll"),
        ],
        [rule("constrain_child_tools", "roll", children=["roll"]), rule("run_first", "roll")],
    ],
)
def test_rules_that_let_no_turn_end_are_refused(
    player: Player, scene: Scene, rules: list[Wire]
) -> None:
    rows = scene.server.rows()
    body: Wire = {
        "model": "openai/scripted-1",
        "include_base_tools": False,
        "tools": ["roll"],
        "tool_rules": rules,
    }
    answer = scene.http.post("/v1/agents/", json=body)
    assert answer.status_code in (400, 422), answer.text
    assert scene.server.rows() == rows

    agent = player.agent("roll", rules=[])
    assert scene.http.patch(f"/v1/agents/{agent}", json={"tool_rules": rules}).status_code in (
        400,
        422,
    )
    scene.says(player.ends("Still here."))
    assert said(scene.send(agent, "Are you there?")) == ["Still here."]
