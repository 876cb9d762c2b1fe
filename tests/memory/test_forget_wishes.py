"""Wishes to forget are recognized in five languages, and never become facts or notes."""

import itertools

import pytest

from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.librarian import grammar
from ricordo.memory.forget_wishes import wish_in
from ricordo.memory.statements import is_statement, stated, to_forget

# Sentences that ask to forget something, with the thing in them.
WISHES = {
    "English": (
        "Forget {}.",
        "Please forget {}.",
        "Please forget {} immediately.",
        "Actually, please delete {}.",
        "Could you please remove {} from your memory?",
        "I want you to forget {}.",
        "For privacy reasons, please erase {}.",
        "forget everything I told you about {}",
    ),
    "German": (
        "Vergiss {}.",
        "Bitte lösche {}!",
        "Vergiss bitte {}.",
        "Kannst du bitte {} vergessen?",
        "Ich möchte, dass du {} vergisst.",
        "Entferne {} aus deinem Gedächtnis.",
    ),
    "French": (
        "Oublie {}.",
        "Oublie {}, s'il te plaît.",
        "S'il te plaît, efface {}.",
        "Peux-tu oublier {} ?",
        "Veuillez supprimer {}.",
    ),
    "Spanish": (
        "Olvida {}.",
        "Por favor, borra {}.",
        "¿Puedes olvidar {}?",
        "Elimina {} de tu memoria.",
        "Olvídate de {}.",
    ),
    "Italian": (
        "Dimentica {}.",
        "Per favore, cancella {}.",
        "Puoi dimenticare {}?",
        "Dimentica {}, per favore.",
        "Elimina {} dalla tua memoria.",
    ),
}
THINGS = {
    "English": ("my diagnosis", "my home address", "Emma"),
    "German": ("meine Diagnose", "meine Adresse", "Emma"),
    "French": ("mon diagnostic", "mon adresse", "Emma"),
    "Spanish": ("mi diagnóstico", "mi dirección", "Emma"),
    "Italian": ("la mia diagnosi", "il mio indirizzo", "Emma"),
}
SENTENCES = [
    (form.format(thing), thing)
    for language, forms in WISHES.items()
    for form, thing in itertools.product(forms, THINGS[language])
]


@pytest.mark.parametrize(("sentence", "thing"), SENTENCES)
def test_a_wish_to_forget_names_its_object_and_is_no_fact(sentence: str, thing: str) -> None:
    assert wish_in(sentence) == thing
    assert [intent.kind for intent in grammar.read(sentence)] == ["forget"]
    assert (stated(sentence), to_forget(sentence)) == ([], [thing])
    assert drafts_in("message-1", sentence, 0) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Don't forget my birthday.",
        "Never forget that I love tea.",
        "I always forget my keys.",
        "I forgot my umbrella.",
        "I will never forget my sister.",
        "Did you forget my name?",
        "Forget my name?",
        "The doctor told me to remove my shoes.",
        "Vergiss nicht, dass ich Tee mag.",
        "Vergiss bitte nicht meinen Termin.",
        "Ich habe meinen Schirm vergessen.",
        "N'oublie pas mon rendez-vous.",
        "Oublie pas mon anniversaire.",
        "J'ai oublié mon parapluie.",
        "No olvides mi cita.",
        "Olvidé mi paraguas.",
        "Non dimenticare il mio appuntamento.",
        "Ho dimenticato l'ombrello.",
    ],
)
def test_a_sentence_that_only_resembles_a_wish_is_none(sentence: str) -> None:
    assert wish_in(sentence) is None
    assert "forget" not in [intent.kind for intent in grammar.read(sentence)]


@pytest.mark.parametrize(
    ("text", "thing", "about"),
    [
        (
            "Actually, please forget my social security number. I shouldn't have shared that.",
            "my social security number",
            "",
        ),
        (
            "Please delete my medical information. I don't want it stored.",
            "my medical information",
            "",
        ),
        (
            "I don't want to talk about Alex anymore. Please forget everything about that relationship.",
            "relationship",
            "Alex",
        ),
        ("You're right. Please forget that password immediately.", "password", ""),
    ],
)
def test_the_reason_given_with_a_wish_is_not_filed(text: str, thing: str, about: str) -> None:
    intents = [intent for intent in grammar.read(text) if intent.kind != "talk"]
    assert intents == [grammar.Intent("forget", thing, about=about)]


def test_a_reason_is_not_part_of_the_forgotten_thing() -> None:
    assert wish_in("Please forget my locker, I should not have told you.") == "my locker"
    assert wish_in("Vergiss meine Adresse, das geht niemanden an.") == "meine Adresse"
    assert wish_in("Forget my address, phone and job.") == "my address, phone and job"


def test_an_idiom_does_not_refer_to_the_sentence_before() -> None:
    (_, wish) = grammar.read("Should I call Paul? Forget it.")
    assert wish == grammar.Intent("forget", "it")


@pytest.mark.parametrize(
    "sentence",
    [
        "Forget it.",
        "Forget about it.",
        "Forget it all!",
        "Forget everything.",
        "Vergiss es.",
        "Oublie ça.",
        "Olvida eso.",
        "Dimentica tutto.",
    ],
)
def test_a_wish_without_a_subject_names_no_line_of_the_notes(sentence: str) -> None:
    assert to_forget(sentence) == []
    assert not is_statement(sentence)
