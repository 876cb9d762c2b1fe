"""Statements in a message, which small models and rules read for notes."""

import itertools

import pytest

from ricordo.memory.statements import stated

GREETINGS = ("Hi.", "Hello!", "Good morning!", "Thanks!", "Hallo.", "Danke!", "Ciao!", "Merci.")
SHORT = ("Nora's birthday is 3 May.", "The dog is called Rex.", "Tea at five.")


@pytest.mark.parametrize(("greeting", "statement"), list(itertools.product(GREETINGS, SHORT)))
def test_a_short_statement_after_a_greeting_is_found(greeting: str, statement: str) -> None:
    assert stated(f"{greeting} {statement}") == [statement]
    assert stated(statement) == [statement]


@pytest.mark.parametrize(
    "request_text", ["Suggest a dinner.", "What can I cook?", "Schreib etwas."]
)
def test_a_short_sentence_that_continues_a_request_is_no_statement(request_text: str) -> None:
    assert stated(f"{request_text} One or two sentences.") == []
    assert stated(f"{request_text} I like soup.") == ["I like soup."]
    assert stated(f"{request_text} The dinner on Friday is for my brother and his wife.") != []
