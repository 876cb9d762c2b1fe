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


REQUESTS = ("Suggest a dinner.", "What can I cook?", "Schreib etwas.", "Ok, tell me a joke!")
FORMS = (
    "One or two sentences.",
    "In German, please.",
    "At most 50 words.",
    "Keep it short.",
    "Nur ein Satz.",
    "En une phrase.",
    "Solo dos frases.",
    "Due frasi.",
)


@pytest.mark.parametrize(
    ("request_text", "form", "short"), list(itertools.product(REQUESTS, FORMS, SHORT))
)
def test_a_statement_ends_the_request_before_it(request_text: str, form: str, short: str) -> None:
    assert stated(f"{request_text} {form} I am vegetarian. {short}") == ["I am vegetarian.", short]
    assert stated(f"{request_text} I am vegetarian. {form} {short}") == ["I am vegetarian.", short]
    assert stated(f"{short} {request_text} I am vegetarian. {form}") == [short, "I am vegetarian."]
    assert stated(f"I am vegetarian. {request_text} {form}") == ["I am vegetarian."]


@pytest.mark.parametrize("request_text", REQUESTS)
def test_a_short_sentence_that_continues_a_request_is_no_statement(request_text: str) -> None:
    assert stated(f"{request_text} One or two sentences.") == []
    assert stated(f"{request_text} I like soup.") == ["I like soup."]
    assert stated(f"{request_text} The dinner on Friday is for my brother and his wife.") != []
