"""Round robin: the speakers, the messages that each member hears, and the messages at the end."""

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line
from tests.api.conftest import Api
from tests.features.groups.talking import (
    aloud,
    group_messages,
    names_of,
    panel,
    say,
    speaker_of,
    speaking,
)


def test_each_member_speaks_once_and_stores_the_whole_round(
    api: Api,
) -> None:
    api.server.answers_with(speaking())
    group, agents = panel(api, "Ann", "Ben", "Cleo", "Dan")
    answer = say(api, group)
    assert names_of(answer) == ["Ann", "Ben", "Cleo", "Dan"]
    assert [one["message_type"] for one in answer["messages"]] == [
        "reasoning_message",
        "assistant_message",
    ] * 4
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    assert answer["usage"]["step_count"] == 4
    for agent_id in agents.values():
        assert len(group_messages(api, agent_id, group)) == 4 + 2


def test_members_without_a_turn_store_one_message_for_each_speaker(
    api: Api,
) -> None:
    api.server.answers_with(speaking())
    group, agents = panel(api, "Dan", "Cleo", "Ben", "Ann", max_turns=3)
    answer = say(api, group)
    assert names_of(answer) == ["Dan", "Cleo", "Ben"]
    assert answer["usage"]["step_count"] == 3
    assert [
        len(group_messages(api, agents[name], group)) for name in ("Dan", "Cleo", "Ben", "Ann")
    ] == [
        5,
        5,
        5,
        4,
    ]


def test_a_member_sees_what_others_said_since_its_last_turn(api: Api) -> None:
    asked: list[tuple[str, list[str]]] = []

    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        asked.append((name, [one.text for one in request.messages[1:]]))
        return aloud(f"{name} {len(asked)}.")

    api.server.answers_with(answer)
    group, agents = panel(api, "Ann", "Ben", max_turns=4)
    say(api, group, "Hello.")
    assert asked[:3] == [
        ("Ann", ["Hello."]),
        ("Ben", ["Hello.", "[Ann] Ann 1."]),
        ("Ann", ["Hello.", "Ann 1.", "[Ben] Ben 2."]),
    ]
    copy = next(
        one
        for one in group_messages(api, agents["Ann"], group)
        if one["message_type"] == "system_message"
    )
    own = next(
        one
        for one in group_messages(api, agents["Ben"], group)
        if one["message_type"] == "assistant_message"
    )
    assert (
        copy | {"name": "Ben", "sender_id": agents["Ben"], "otid": own["otid"], "content": "Ben 2."}
        == copy
    )


def test_an_edit_of_a_shared_block_is_in_the_next_speakers_prompt(api: Api) -> None:
    from ricordo.llm.scripted import call

    prompts: dict[str, str] = {}
    block = api.client.blocks.create(label="board", value="Empty.").id

    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        prompts.setdefault(name, request.messages[0].text)
        if name == "Ann" and request.messages[-1].role == "user":
            return call(
                "memory_replace", label="board", old_string="Empty.", new_string="Ann wrote this."
            )
        return f"I am {name}."

    api.server.answers_with(answer)
    group, agents = panel(api, "Ann", "Ben")
    for agent_id in agents.values():
        api.client.agents.blocks.attach(block, agent_id=agent_id)
    api.client.agents.tools.attach(
        next(tool.id for tool in api.client.tools.list(name="memory_replace")),
        agent_id=agents["Ann"],
    )
    say(api, group)
    assert "Empty." in prompts["Ann"]
    assert "Ann wrote this." in prompts["Ben"]
