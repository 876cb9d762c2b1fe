"""Dynamic groups: a manager chooses the next speaker, until all had a turn or the token is said."""

from collections import deque

import pytest

from ricordo.domain.model import ModelRequest
from ricordo.features.groups.talk_plan import Speaker, named_member, next_in_order
from ricordo.llm.scripted import Line
from tests.api.conftest import Api
from tests.features.groups.talking import (
    aloud,
    group_messages,
    names_of,
    new_agent,
    new_group,
    say,
    speaker_of,
)


def moderated(
    api: Api, *names: str, choices: list[str], said: list[str] | None = None, **more: object
) -> tuple[str, str]:
    """Make a dynamic group whose manager makes these choices; return its id and the manager's."""
    chosen, words = deque(choices), deque(said or [])

    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        if name:
            return aloud(words.popleft() if words else f"{name} speaks.")
        return aloud(chosen.popleft())

    api.server.answers_with(answer)
    manager = new_agent(api, "Maria")
    members = [new_agent(api, name) for name in names]
    return new_group(api, "dynamic", members, manager_agent_id=manager, **more), manager


def test_each_round_is_a_manager_turn_and_a_speaker_turn(api: Api) -> None:
    group, manager = moderated(
        api, "Ann", "Ben", "Cleo", choices=["Cleo", "I choose ben!", "Ann or maybe Cleo"]
    )
    answer = say(api, group)
    assert names_of(answer) == ["Maria", "Cleo", "Maria", "Ben", "Maria", "Cleo"]
    assert answer["usage"]["step_count"] == 6
    assert len(answer["messages"]) == 12
    last = group_messages(api, manager, group)
    # The manager gets the talk once it is over: the user's message, and each speaker's.
    assert [one["content"] for one in last[-4:]] == [
        "Hello all.",
        "Cleo speaks.",
        "Ben speaks.",
        "Cleo speaks.",
    ]


def test_the_termination_token_of_a_speaker_ends_the_talk(api: Api) -> None:
    group, _ = moderated(
        api,
        "Ann",
        "Ben",
        choices=["Ann DONE!", "Ben"],
        said=["Not yet.", "We are DONE!"],
        termination_token="DONE!",
        max_turns=9,
    )
    answer = say(api, group)
    assert names_of(answer) == ["Maria", "Ann", "Maria", "Ben"]


def test_a_manager_that_names_nobody_is_asked_again_then_the_next_member_speaks(
    api: Api,
) -> None:
    group, manager = moderated(
        api, "Ann", "Ben", choices=["Hm.", "Somebody.", "Ben", "Hm.", "Nobody."], max_turns=3
    )
    answer = say(api, group)
    assert names_of(answer) == ["Maria", "Maria", "Ann", "Maria", "Ben", "Maria", "Maria", "Ann"]
    (run,) = [
        one for one in api.client.runs.list(agent_id=manager) if (one.metadata or {}).get("plan")
    ]
    assert len((run.metadata or {})["notes"]) == 2


def test_the_only_member_of_a_dynamic_group_is_chosen_by_name_each_time(api: Api) -> None:
    group, manager = moderated(api, "Ann", choices=["Ann", "Ann"], max_turns=2)
    assert names_of(say(api, group)) == ["Maria", "Ann", "Maria", "Ann"]
    (run,) = [
        one for one in api.client.runs.list(agent_id=manager) if (one.metadata or {}).get("plan")
    ]
    assert "notes" not in (run.metadata or {})


MEMBERS = [
    Speaker("agent-1", "Anna"),
    Speaker("agent-2", "Ann"),
    Speaker("agent-3", "Dr. Öz"),
    Speaker("agent-4", "Ben (2)"),
    Speaker("agent-5", "花子"),
]


@pytest.mark.parametrize(
    ("answer", "last", "speaker"),
    [
        ("Anna", None, "agent-1"),
        ("ANN", None, "agent-2"),
        ("anna", "agent-2", "agent-1"),
        ("Anna and then Ann", None, "agent-2"),
        ("Anna and then Ann", "agent-2", "agent-1"),
        ("dr. öz, please", None, "agent-3"),
        ("I'd say DR. ÖZ or Ann", None, "agent-3"),
        ("agent-3", None, "agent-3"),
        ("**Ben (2)**", None, "agent-4"),
        ("ben", None, None),
        ("", None, None),
        ("Ann", "agent-2", None),
        ("Nobody", "agent-1", None),
        ("I cannot say, and neither can Joanna or Annabel.", None, None),
        ("_Ann_ or Ann's friend", None, "agent-2"),
        ("agent-20 and agent-21", None, None),
        ("次は花子さんです", None, "agent-5"),
    ],
)
def test_the_last_named_member_speaks(answer: str, last: str | None, speaker: str | None) -> None:
    named = named_member(answer, MEMBERS, last)
    assert (named.id if named else None) == speaker


def test_the_next_speaker_follows_the_last_speaker_in_order() -> None:
    order = [
        next_in_order(MEMBERS, last).id
        for last in (None, "agent-1", "agent-5", "agent-of-another-group")
    ]
    assert order == ["agent-1", "agent-2", "agent-1", "agent-1"]
