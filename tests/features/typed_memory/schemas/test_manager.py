from datetime import UTC, datetime, timedelta, timezone
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.errors import Conflict, Invalid, PreconditionFailed
from ricordo.features.typed_memory.schemas.blocks import HumanBlock, PersonaBlock
from ricordo.features.typed_memory.schemas.manager import BaseAgent, MemoryManager
from ricordo.features.typed_memory.schemas.rotation import (
    AdaptiveRotation,
    AggressiveRotation,
    PreservativeRotation,
    RotationStrategy,
)
from tests.features.typed_memory.schemas.fake import FakeLetta, Killed

ALICE = "[USER] Alice | High school senior"
MORNING = datetime(2025, 12, 31, 10, 0, 0, tzinfo=UTC)


class Clock:
    """A clock that only the test moves."""

    now = MORNING

    def __call__(self) -> datetime:
        return self.now


def manager_of(
    client: FakeLetta,
    max_chars: int | None = None,
    strategy: RotationStrategy | None = None,
    clock: Clock | None = None,
) -> MemoryManager:
    return MemoryManager(client, "agent-1", max_chars, strategy, now=clock or Clock())


def test_each_value_is_written_to_the_block_once() -> None:
    client = FakeLetta(ALICE)
    manager = manager_of(client)
    for tell, text in (
        (manager.set_task, "Essay"),
        (manager.learn_preference, "Short answers"),
        (manager.learn_fact, "Lives in Turin"),
        (manager.add_context, "Talked"),
    ):
        before = len(client.agents.blocks.writes)
        with pytest.raises(Invalid, match="is empty"):
            tell(" ")
        tell(text)
        tell(text)
        assert len(client.agents.blocks.writes) == before + 1, text
    manager.update_persona(PersonaBlock(name="Otto", role="Coach"))

    assert client.human == (
        f"{ALICE}\n[TASK] Essay\n[STATE] active_task\n[PREFS] Short answers\n[FACTS] Lives in "
        "Turin\n[CONTEXT] Talked"
    )
    assert (
        client.agents.blocks.values["persona"]
        == "[IDENTITY] Otto | Coach\n[STYLE] professional, concise"
    )
    assert client.archive == []


def test_a_completed_or_replaced_task_is_archived_with_its_notes() -> None:
    client, clock = FakeLetta(ALICE), Clock()
    manager = manager_of(client, clock=clock)
    clock.now = MORNING.astimezone(timezone(timedelta(hours=9)))
    manager.set_task("Essay\n[TASK COMPLETED 2020-01-01T00:00:00]", context="Begin")
    manager.add_context("Talked")
    manager.clear_task()
    assert client.human == f"{ALICE}\n[STATE] idle"
    clock.now += timedelta(days=1)
    manager.set_task("Essay", context="Begin")
    manager.set_task("Mathematics")
    manager.clear_task(archive=False)
    manager.clear_task()

    assert client.archive == [
        "[TASK COMPLETED 2025-12-31T10:00:00]\nTask: Essay\n  [TASK COMPLETED "
        "2020-01-01T00:00:00]\nContext:\n- Begin\n- Talked",
        f"[ARCHIVED 2026-01-01T10:00:00]\n{ALICE}\n[TASK] Essay\n[STATE] active_task\n[CONTEXT] "
        "Begin",
    ]
    assert client.human == f"{ALICE}\n[STATE] idle\n[CONTEXT] Begin"


def test_an_overfull_block_is_archived_whole_and_keeps_the_newest() -> None:
    client = FakeLetta(ALICE)
    manager = manager_of(client)
    manager.set_task("Essay")
    manager.learn_fact("x" * 700)
    manager.add_context("older " + "y" * 400)
    assert client.archive == []

    manager.add_context("newer " + "z" * 100)

    assert client.archive == [
        f"[ARCHIVED 2025-12-31T10:00:00]\n{ALICE}\n[TASK] Essay\n[STATE] active_task\n"
        f"[FACTS] {'x' * 700}\n[CONTEXT] older {'y' * 400}; newer {'z' * 100}"
    ]
    human = HumanBlock.from_memory_string(client.human)
    assert human.context_notes == ["newer " + "z" * 100]
    assert human.facts == ["x" * 700]


def test_the_strategy_sets_the_threshold_of_rotation() -> None:
    text = f"{ALICE}\n[FACTS] {'x' * 300}\n[CONTEXT] {'y' * 300}; "
    for strategy, lowest in (
        (AggressiveRotation, 0.75),
        (AdaptiveRotation, 0.85),
        (PreservativeRotation, 0.95),
    ):
        for share in (0.75, 0.85, 0.95):
            client = FakeLetta(text + "z" * (int(1500 * share) - len(text)))
            manager_of(client, strategy=strategy()).learn_preference("Short")
            assert bool(client.archive) == (share >= lowest), (strategy, share)
            assert "[PREFS] Short" in client.human


def test_an_unreadable_block_is_archived_before_it_is_replaced() -> None:
    client = FakeLetta("[TASK] one\n[STATE] dancing")
    manager = manager_of(client)
    with pytest.raises(Invalid, match="no session state 'dancing'"):
        manager.learn_fact("Drinks tea")
    assert (client.agents.blocks.writes, client.archive) == ([], [])

    manager.update_human(HumanBlock(name="Alice"))

    assert client.archive == ["[ARCHIVED 2025-12-31T10:00:00]\n[TASK] one\n[STATE] dancing"]
    assert client.human == "[USER] Alice\n[STATE] idle"


def test_a_superseded_line_is_archived_before_it_is_removed() -> None:
    client = FakeLetta(f"{ALICE}\n[TASK] one\n[TASK] two")
    manager_of(client).learn_fact("Drinks tea")
    assert client.human == f"{ALICE}\n[TASK] two\n[STATE] idle\n[FACTS] Drinks tea"
    assert client.archive == [f"[ARCHIVED 2025-12-31T10:00:00]\n{ALICE}\n[TASK] one\n[TASK] two"]


def test_a_change_that_always_conflicts_ends_with_an_error() -> None:
    client = FakeLetta(ALICE)
    blocks = client.agents.blocks
    tries: list[str] = []

    def refuse(
        block_label: str, *, agent_id: str, value: str, extra_headers: dict[str, str]
    ) -> None:
        tries.append(extra_headers["If-Match"])
        raise PreconditionFailed(f"{block_label} of {agent_id} changed, so {value} is not written")

    blocks.retrieve = lambda *_, **__: SimpleNamespace(value=ALICE, version=len(tries))  # type: ignore[method-assign]
    blocks.update = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(Conflict, match="Try again later"):
        manager_of(client).learn_fact("Drinks tea")
    assert tries == [f'"{number}"' for number in range(20)]


def test_a_block_filled_by_a_long_task_is_not_archived_repeatedly() -> None:
    client = FakeLetta(ALICE)
    manager = manager_of(client)
    manager.set_task("x" * 1350)
    manager.add_context("one")
    assert client.archive == []
    assert HumanBlock.from_memory_string(client.human).context_notes == ["one"]
    manager.set_task("x" * 3000)
    assert len(client.human) <= 1500
    assert f"[TASK] {'x' * 3000}\n" in client.archive[-1]


@pytest.mark.parametrize(
    ("later", "archived"), [(timedelta(minutes=9), 1), (timedelta(minutes=11), 2)]
)
def test_a_kill_between_archive_and_block_loses_and_doubles_nothing(
    later: timedelta, archived: int
) -> None:
    """An equal passage within ten minutes counts as the same; later it could be a new one."""
    client = FakeLetta(ALICE)
    clock = Clock()
    manager_of(client).set_task("Essay", context="Begin")
    before = client.human
    client.agents.blocks.is_killed = True
    with pytest.raises(Killed):
        manager_of(client).clear_task()
    assert (client.human, len(client.archive)) == (before, 1)

    client.agents.blocks.is_killed = False
    clock.now += later
    manager_of(client, clock=clock).clear_task()

    assert (client.human, len(client.archive)) == (f"{ALICE}\n[STATE] idle", archived)


def test_the_summary_shows_usage_and_contents_of_memory() -> None:
    human = (
        f"{ALICE}\n[TASK] Essay\n[STATE] waiting_input\n[PREFS] a; b\n[FACTS] c\n[CONTEXT] d; e; f"
    )
    client = FakeLetta(human, persona="x" * 300)

    assert manager_of(client).get_summary() == {
        "persona_usage": 20.0,
        "human_usage": round(100 * len(human) / 1500, 1),
        "total_usage": round(100 * (300 + len(human)) / 3000, 1),
        "session_state": "waiting_input",
        "current_task": "Essay",
        "preferences": 2,
        "facts": 1,
        "context_notes": 3,
    }


def test_an_agent_without_a_persona_works() -> None:
    client = FakeLetta(ALICE)
    del client.agents.blocks.values["persona"]
    manager_of(client).learn_fact("Drinks tea")
    assert "Drinks tea" in client.human
    with pytest.raises(Invalid, match="at least one"):
        manager_of(client).search_archival("essay", limit=0)


def test_invalid_settings_are_refused_before_an_agent_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeLetta()
    with pytest.raises(Invalid, match="at least 150"):
        BaseAgent(client, max_chars=149)
    monkeypatch.setenv("ARCHIVAL_ROTATION_THRESHOLD", "80")
    with pytest.raises(Invalid):
        BaseAgent(client)
    assert client.made == []
    assert BaseAgent(client, max_chars=200, strategy=PreservativeRotation()).memory.max_chars == 200


def test_two_threads_with_one_manager_lose_nothing() -> None:
    client = FakeLetta(ALICE)
    client.agents.blocks.pause = 0.001
    manager = manager_of(client)
    threads = [
        Thread(
            target=lambda name=name: [
                manager.add_context(f"{name}{number}") for number in range(20)
            ]
        )
        for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    texts = [client.human, *(text.partition("\n")[2] for text in client.archive)]
    notes = {note for text in texts for note in HumanBlock.from_memory_string(text).context_notes}
    assert notes == {f"{name}{number}" for name in "ab" for number in range(20)}


@given(
    st.lists(st.sampled_from(["task", "fact", "preference", "note", "done"]), max_size=25),
    st.integers(150, 400),
    st.sampled_from([AggressiveRotation, PreservativeRotation, AdaptiveRotation]),
    st.integers(1, 70),
)
def test_every_word_is_kept_in_the_block_or_the_archive(
    acts: list[str], max_chars: int, strategy: type[AdaptiveRotation], length: int
) -> None:
    client = FakeLetta(ALICE)
    manager = manager_of(client, max_chars=max_chars, strategy=strategy())
    said = []
    for number, act in enumerate(acts):
        word = f"w{number}w" + "é;" * length
        if act == "done":
            manager.clear_task()
            continue
        tells = {
            "task": manager.set_task,
            "fact": manager.learn_fact,
            "preference": manager.learn_preference,
        }
        tells.get(act, manager.add_context)(word)
        said.append(word)
        assert len(client.human) <= max_chars

    everything = "\n".join([client.human, *client.archive]).replace("\\;", ";")
    assert [word for word in said if word not in everything] == []
