"""How the librarian compares words."""

import pytest

from ricordo.llm.librarian.words import are_related, kinds_asked, kinds_told, query_words, score, shared, stems


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("allergic", "allergies"),
        ("live", "lived"),
        ("running", "runs"),
        ("decide", "decided"),
        ("city", "cities"),
        ("wohne", "wohnst"),
        ("Nüsse", "nussen"),
        ("sister's", "sister"),
    ],
)
def test_forms_of_a_word_meet(one: str, other: str) -> None:
    assert shared(stems(one), stems(other)) == 1
    assert score(f"So: {other}!", stems(one), set()) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("nut", "nutmeg"), ("exam", "examination"), ("1234", "1235"), ("tea", "team")]
)
def test_other_words_do_not_meet(one: str, other: str) -> None:
    assert not are_related(*stems(one), *stems(other))


def test_words_without_meaning_are_no_query() -> None:
    assert query_words("What did I tell you about my sister's Blue bicycle?") == ["sister's", "Blue", "bicycle"]
    assert query_words("我对什么过敏？") == ["过敏"]
    assert query_words("What is it?") == []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("My name is Ada", {"name"}),
        ("Name: Ada", {"name"}),
        ("My sister's name is Emma", {"my sister's name"}),
        ("call me a taxi", set()),
        ("I moved to Rome", {"home"}),
        ("I lived in Rome", set()),
        ("I am 34 years old", {"age"}),
        ("I am 5 minutes late", set()),
        ("My favorite color is blue", {"my favourite colour"}),
        ("我住在都灵", {"home"}),
        ("Ich heiße Ada", {"name"}),
    ],
)
def test_kinds_of_facts_are_told_apart(text: str, kinds: set[str]) -> None:
    assert kinds_told(text) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Who am I?", {"name"}),
        ("What's my name?", {"name"}),
        ("What is my sister's name?", set()),
        ("Where do I live?", {"home"}),
        ("How old am I?", {"age"}),
        ("What is my favourite colour?", {"my favourite colour"}),
        ("Wie heiße ich?", {"name"}),
    ],
)
def test_what_is_asked_for_is_a_kind_of_fact(text: str, kinds: set[str]) -> None:
    assert kinds_asked(text) == kinds
