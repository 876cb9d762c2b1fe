"""The scripted model of `bench.benchd`: what it keeps, corrects, forgets and answers."""

import json
from itertools import product
from typing import Any

import pytest

from bench import benchd, reader
from bench.reader import Turn, reply_to, turn_of
from ricordo.features.memory_care.forgetting.needle import MARK

TOOLS = frozenset(
    "memory_insert memory_replace archival_memory_insert archival_memory_search "
    "conversation_search forget".split()
)
# These changes are invented, and not taken from a benchmark: statements in order, the question, the
# newest value.
STORIES = {
    "flat": (
        ["I live in {0} with two friends.", "We moved into our flat in {0} last week."],
        ["Actually I'm moving to {1} in May.", "I just moved to {1}, it is calmer."],
        ["Where do I live now?", "Which city does the user live in?"],
        [("Graz", "Lyon"), ("Turin", "Porto")],
    ),
    "job": (
        ["I work as a baker at {0}.", "My job at {0} is in the mornings."],
        ["I have a new job at {1}.", "I just started a position at {1}."],
        ["Where do I work?", "What company does the user work for?"],
        [("Corda", "Brunn"), ("Feld", "Sacher")],
    ),
    "tea": (
        ["My favourite tea is {0}.", "The tea that I drink is {0}."],
        ["Actually, my tea is now {1}.", "I have switched to {1} tea."],
        ["What is my favourite tea?", "Which tea does the user drink?"],
        [("mint", "rooibos"), ("jasmine", "oolong")],
    ),
    "exam": (
        ["The exam is on {0}.", "My exam will be on {0}."],
        ["They moved the exam to {1}.", "The exam is now on {1}."],
        ["When is my exam?", "On which day is the exam?"],
        [("12 May", "14 June"), ("2 March", "9 April")],
    ),
}
BESIDE = ("I had soup for lunch.", "My cousin plays chess.")


def turn(text: str, *earlier: str, **more: Any) -> Turn:
    return Turn(text, earlier, more.get("results", ()), TOOLS, more.get("system", ""))


@pytest.mark.parametrize("story", STORIES)
def test_the_newest_statement_answers_a_question(story: str) -> None:
    told, changed, asked, values = STORIES[story]
    wrong = []
    for first, change, question, (old, new) in product(told, changed, asked, values):
        said = (first.format(old), BESIDE[0], change.format("", new), BESIDE[1])
        answer = reader.newest(question, said)
        if new not in answer:
            wrong.append((said, question, answer))
    assert wrong == []


def test_an_unstated_fact_is_not_known() -> None:
    found = (("conversation_search", "No results found."),)
    assert "don't know" in str(reply_to(turn("Which car do I own?", *BESIDE, results=found)))


def test_a_question_is_looked_up_before_it_is_answered() -> None:
    calls = reply_to(turn("Where do I live?"))
    assert [call["name"] for call in calls if isinstance(call, dict)] == [
        "conversation_search",
        "archival_memory_search",
    ]


def test_a_wish_to_forget_names_the_stated_sentences() -> None:
    said = "Hello. My doctor says that I have gout. I like tea."
    (call,) = reply_to(turn("Please forget what my doctor says.", said))
    assert isinstance(call, dict)
    assert (call["name"], call["arguments"]["text"]) == (
        "forget",
        "My doctor says that I have gout.",
    )
    # The model refuses no question. It does not know the answer, since the text was removed.
    found = (("conversation_search", "No results found."),)
    wish = "Please forget what my doctor says."
    question = turn("What does my doctor say?", said, wish, results=found)
    assert "gout" in str(reply_to(question))
    question = turn("What does my doctor say?", f"Hello. {MARK} I like tea.", wish, results=found)
    assert "don't know" in str(reply_to(question))


def test_an_openai_request_is_read_as_a_turn() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "You keep a memory."},
            {"role": "user", "content": "I live in Graz."},
            {"role": "user", "content": "[Previous assistant response]: Nice!"},
            {"role": "user", "content": "Where do I live?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c1", "function": {"name": "conversation_search", "arguments": "{}"}}
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": json.dumps(
                    {"message": {"results": [{"role": "user", "content": "I moved to Lyon now."}]}}
                ),
            },
        ],
        "tools": [{"type": "function", "function": {"name": "conversation_search"}}],
    }
    read = turn_of(body)
    assert (read.text, read.earlier) == ("Where do I live?", ("I live in Graz.",))
    assert "Graz" in str(reply_to(read)) or "Lyon" in str(reply_to(read))


def outcome(number: int, dimension: str, *, passed: bool, answer: str) -> dict[str, Any]:
    return {
        "question_id": f"q{number}",
        "dimension": dimension,
        "status": "scored",
        "scored_correct": passed,
        "raw_recall": answer,
    }


def test_outcomes_are_counted_by_category_and_without_trap_words() -> None:
    traces = [
        *(outcome(n, "stale_memory", passed=n > 0, answer="Lyon, not Graz.") for n in range(7)),
        outcome(8, "deletion", passed=True, answer="I don't know."),
        {**outcome(9, "reasoning", passed=False, answer=""), "status": "pending_llm_judge"},
    ]
    outcomes = list(benchd.outcomes_in({"traces": traces}, {"q1": ["graz"], "q2": ["rome"]}))
    assert list(benchd.rows_of(outcomes)) == [
        "stale_memory           6 of 7     5 without a trap word",
        "deletion               1 of 1     1 without a trap word",
        "reasoning              0 of 0     0 without a trap word",
    ]
    assert benchd.is_enough(outcomes)
    assert not benchd.is_enough(outcomes[1:3] + outcomes[:2])
