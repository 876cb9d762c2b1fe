"""Passages that a client inserts into a user's message do not count as the user's words."""

import pytest

from ricordo.agents.request import (
    NewMessage,
)
from ricordo.domain.message import TextPart
from ricordo.domain.scope import Scope

SENT = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline citations.\n\nThe plan.\n\nWhat?",
    "## Task:\n Respond to the user query using the provided context\n\nThe plan.",
    "<context>\nThe plan.\n</context>\n\nWhat is it?",
    "What is it?\n\n<context>\nThe plan.\n</context>",
    '<source id="1" name="plan.pdf">The plan.</source>\nWhat is it?',
    'Use this: <source id="2">The plan.</source>',
    '<documents>\n<document index="1"><source>plan.pdf</source></document>\n</documents>',
    '<document name="plan.pdf">The plan.</document>',
    "<sources>\nThe plan.\n</sources>\nWhat?",
    '<search_results query="plan">\nThe plan.\n</search_results>',
    "  <retrieved_context>The plan.</retrieved_context>",
    "<retrieved_documents>\nThe plan.",
    '<Knowledge type="file">\nThe plan.',
    "<passages>\nThe plan.\n</passages>",
    "<user_files>\nplan.pdf: The plan.\n</user_files>",
)
WRITTEN = (
    "What is the context of this?",
    "My task: respond to the user query.",
    "I like a < b and b > c.",
    "In HTML there is <source src='a.mp4'> and <b>bold</b>.",
    "The source is open, see documents 1 and 2.",
    "Use the provided context and sources.",
)


@pytest.mark.parametrize("role", ["user", "system"])
def test_retrieved_passages_are_untrusted_in_every_form(role: str) -> None:
    for text in SENT:
        assert NewMessage(role, (TextPart(text),)).is_others(Scope(), None), text  # type: ignore[arg-type]


def test_a_users_own_text_about_sources_is_trusted() -> None:
    for text in WRITTEN:
        assert not NewMessage("user", (TextPart(text),)).is_others(Scope(), None), text
