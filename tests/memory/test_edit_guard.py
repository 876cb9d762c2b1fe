"""Writes that are refused as repetitions, notices to the agent, and allowed notes."""

import json

import pytest

from ricordo.domain.agent import AgentState
from ricordo.domain.message import ToolReturnPart
from ricordo.errors import Invalid
from ricordo.memory.edits import (
    EditGuard,
    GuardSources,
    PassageDraft,
    WorkingMemory,
    added_lines,
    changed_piece,
    only_repeats,
    repeated,
    search_results,
)
from tests.seams import make
from tests.seams.growth import require_linear

PASSAGE = (
    "Ada moved to Turin in spring to study mathematics, and her sister Bianca joined her there "
    "two years later."
)
SYSTEM = (
    "You are Nina, a patient tutor who asks one question at a time and never gives the whole "
    "answer away at once."
)
GUARD = EditGuard(
    lambda: GuardSources(system=(SYSTEM,), recalled=(PASSAGE, "Tea grows in Darjeeling."))
)


def test_recalled_text_and_instructions_cannot_be_saved_and_new_text_can() -> None:
    for text in (
        PASSAGE,
        f"- {PASSAGE.upper()}",
        PASSAGE.replace(" ", "\n"),
        SYSTEM,
        f"{SYSTEM} Yes.",
    ):
        with pytest.raises(Invalid, match="Nothing was saved"):
            GUARD.require_new(text)
    for text in (
        "",
        "Ada moved to Turin in spring.",
        "Tea grows in Darjeeling.",
        (
            "Ada studies mathematics in Turin; her sister Bianca lives with her, and both miss their "
            "dog very much."
        ),
        (
            f"{PASSAGE} She told me so while we talked about the geometry homework that is due on "
            "Friday."
        ),
    ):
        GUARD.require_new(text)


def test_a_text_with_ninety_percent_of_known_words_is_a_repetition() -> None:
    words = [f"word{number}" for number in range(104)]
    guard = EditGuard(lambda: GuardSources(recalled=(" ".join(words),)))
    with pytest.raises(Invalid):
        guard.require_new(" ".join([*words, *(f"new{number}" for number in range(11))]))
    guard.require_new(" ".join([*words, *(f"new{number}" for number in range(12))]))


def test_added_lines_are_the_lines_that_the_old_text_lacks() -> None:
    for before, after, added in (
        ("Ada", "Ada\nLikes tea.", "Likes tea."),
        ("Name: Ada\nLikes tea", "Name: Ada\nLikes green tea", "green"),
        ("one\ntwo\nthree", "three\none\ntwo", ""),
        *(("one two", "one", ""), ("", "all of it", "all of it"), ("same", "same", "")),
    ):
        assert "\n".join(added_lines(before, changed_piece(before, after))).strip() == added, (
            before,
            after,
        )


def test_search_results_are_read_with_their_escapes_undone() -> None:
    agent = make.agent()
    found = json.dumps([{"content": 'She said: "tea"\nand left.'}])
    whole = ToolReturnPart("c", "archival_memory_search", "success", found, is_json=True)
    cut = ToolReturnPart("c", "archival_memory_search", "success", found[:31])
    other = ToolReturnPart("c", "roll", "success", "six")
    sourced = ToolReturnPart(
        "c", "query_student", "success", "She likes tea.", sources=("message-1",)
    )
    window = [
        make.message(agent, role="tool", parts=(whole, cut, other, sourced)),
        make.message(agent, "Hello."),
    ]
    assert search_results(window)[0] == [
        'She said: "tea"\nand left.',
        '[{"content": "She said: "tea"',
        "She likes tea.",
    ]


def test_a_users_own_messages_in_search_results_are_attributed_to_the_user() -> None:
    agent = make.agent()
    hits = [
        {"role": "user", "content": "She likes tea."},
        {"role": "assistant", "content": "So I heard."},
    ]
    found = json.dumps({"message": "Showing 2 results:", "results": hits})
    sources = {"sources": ("message-1", "message-2"), "said": ("message-1",)}
    whole = ToolReturnPart("c", "conversation_search", "success", found, is_json=True, **sources)  # type: ignore[arg-type]
    window = [make.message(agent, role="tool", parts=(whole,))]
    assert search_results(window) == (["assistant", "So I heard."], ["user", "She likes tea."])
    # Nobody can tell who said the part that was cut.
    cut = ToolReturnPart("c", "conversation_search", "success", found[:90], **sources)  # type: ignore[arg-type]
    window = [make.message(agent, role="tool", parts=(cut,))]
    assert [len(texts) for texts in search_results(window)] == [1, 0]


TEXT = "Name: Ada\n- Likes green tea in the morning, no sugar.\nCity: Turin"
LINE = "Likes green tea in the morning, no sugar."


def test_a_line_that_exists_already_is_found_whatever_its_bullet() -> None:
    for line in (LINE, f"* {LINE}", f"3. {LINE}", LINE.upper(), LINE.replace(" ", "  ")):
        after = f"{TEXT}\n{line}"
        (known,) = found = repeated("human", TEXT, after, {"notes": line})
        assert only_repeats("human", TEXT, after, found)
        assert (known.label, known.line) == ("human", 2)
        (also,) = repeated("notes", "", line, {"human": TEXT})
        assert "line 2" in also.describe()
    # Lists, moved lines and mixed writes are not only repetitions.
    for before, after in (
        ("tea\ntea", "tea\ntea\ntea"),
        (TEXT, TEXT.replace("- Likes", "Likes")),
        (TEXT, f"{LINE}\n{TEXT.replace(LINE, '')}"),
        (TEXT, f"{TEXT}\n{LINE}\nShe told me so when we spoke of breakfast."),
        *((TEXT, TEXT), (TEXT, "")),
    ):
        assert not only_repeats("human", before, after, repeated("human", before, after, {})), after


def test_a_nearly_equal_line_is_reported_and_an_updated_one_is_not() -> None:
    near = "Likes green tea in the early morning, no sugar."
    (standing,) = repeated("notes", "", near, {"human": TEXT})
    assert not standing.is_same
    assert "nearly" in standing.describe()
    assert repeated("human", TEXT, TEXT.replace("no sugar", "no sugars"), {}) == []


@pytest.fixture
def memory() -> WorkingMemory:
    agent = make.agent()
    blocks = (make.block("human", TEXT), make.block("notes", ""))
    return WorkingMemory(AgentState(agent, make.conversation(agent), blocks), GUARD)


def test_a_repetition_is_refused_by_every_write(memory: WorkingMemory) -> None:
    with pytest.raises(Invalid, match="a search of your memory"):
        memory.write("notes", PASSAGE, "call-1")
    with pytest.raises(Invalid, match="your own instructions"):
        memory.create("self", SYSTEM, None, "call-2")
    with pytest.raises(Invalid, match="a search of your memory"):
        memory.archive(PassageDraft("call-3", "passage-1", PASSAGE, ()))
    with pytest.raises(Invalid, match=r'is already in memory block "human", line 2'):
        memory.write("human", f"{TEXT}\n{LINE}", "call-4")
    assert (memory.edits, memory.passages, memory.notes) == ([], [], {})


def test_a_line_of_another_block_is_written_with_a_note(memory: WorkingMemory) -> None:
    assert memory.write("notes", LINE, "call-1") == LINE
    ((note,),) = memory.notes.values()
    assert 'is already in memory block "human", line 2' in note


def test_long_texts_are_compared_in_linear_time() -> None:
    def work(size: int) -> None:
        lines = [
            f"line {number} says something about topic {number % 97} and the number {number}"
            for number in range(size)
        ]
        long = "\n".join(lines)
        other = "\n".join(f"{line} again" for line in lines)
        only_repeats("human", "", long, repeated("human", "", long, {"notes": other}))
        EditGuard(lambda: GuardSources(recalled=(other,))).require_new(long)
        added_lines(long, changed_piece(long, long[:5_000] + "x" + long[5_000:]))

    require_linear(work, 190)


def test_reordering_a_blocks_own_text_is_no_repetition_of_a_search_result() -> None:
    lines = [
        " ".join(f"{name}{number}" for number in range(30)) for name in ("tea", "trip", "work")
    ]
    sources = GuardSources(
        recalled=("\n".join(lines), " ".join(f"other{number}" for number in range(30)))
    )
    agent = make.agent()
    state = AgentState(agent, make.conversation(agent), (make.block("human", "\n".join(lines)),))
    memory = WorkingMemory(state, EditGuard(lambda: sources))
    memory.write("human", f"{lines[2]}; {lines[0]}, {lines[1]}", "call-1")
    with pytest.raises(Invalid, match="a search of your memory"):
        memory.write("human", f"{lines[0]} {sources.recalled[1]}", "call-2")
