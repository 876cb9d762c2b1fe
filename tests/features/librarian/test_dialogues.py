"""Dialogues with the librarian, made from a table.

It has languages, kinds of facts, and sentences that tell, change and ask.
"""

from itertools import product

import pytest

from tests.features.librarian.test_librarian import Talk

# By language and kind: the old and the new value, and sentences that tell a value, change it and
# ask for it.
FACTS: dict[str, dict[str, tuple[tuple[str, str], list[str], list[str], list[str]]]] = {
    "English": {
        "name": (
            ("Lena", "Magdalena"),
            ["My name is {}.", "I'm {}.", "Hi! My name is {}."],
            ["My name is now {}.", "Please call me {}."],
            ["What is my name?", "Who am I?", "Do you know my name?"],
        ),
        "home": (
            ("Graz", "Vienna"),
            ["I live in {}.", "We live in {}.", "I'm living in {}."],
            ["I moved to {} last week.", "I live in {} now.", "I've just moved to {}."],
            ["Where do I live?", "Which city do I live in?", "In which city do I live now?"],
        ),
        "age": (
            ("30", "31"),
            ["I'm {} years old.", "I am {}."],
            ["I'm {} now.", "I turned {}."],
            ["How old am I?"],
        ),
        "birthday": (
            ("9 May", "8 May"),
            ["My birthday is on {}.", "I was born on {}."],
            ["Sorry, my birthday is on {}."],
            ["When is my birthday?"],
        ),
        "favourite": (
            ("jasmine", "rooibos"),
            ["My favourite tea is {}.", "My favorite tea is {}."],
            [
                "My favourite tea is now {}.",
                "My favourite is now {}.",
                "I prefer {} to jasmine now.",
            ],
            ["What is my favourite tea?", "Which tea do I prefer?"],
        ),
        "diet": (
            ("hazelnuts", ""),
            [
                "I'm allergic to {}.",
                "I can't eat {}.",
                "I'm allergic to {}, please keep that in mind.",
            ],
            [],
            [
                "Is there any food that I must avoid?",
                "What can't I eat?",
                "Which food should I avoid?",
            ],
        ),
        "job": (
            ("nurse", "teacher"),
            ["I work as a {}.", "I work as a {} at the LKH."],
            ["I work as a {} now."],
            ["What is my job?", "What do I do for a living?"],
        ),
        "pet": (
            ("Bruno", ""),
            ["I have a dog called {}.", "My dog's name is {}.", "My dog is called {}."],
            [],
            ["What's my dog's name?", "What is my dog called?"],
        ),
        "exam": (
            ("3 March 2027", "4 April 2027"),
            ["My exam is on {}.", "I'm learning Italian, my exam is on {}."],
            [],
            ["When is my exam?"],
        ),
    },
    "German": {
        "name": (
            ("Lena", "Magdalena"),
            ["Ich heiße {}.", "Mein Name ist {}."],
            ["Ich heiße jetzt {}."],
            ["Wie heiße ich?", "Wie ist mein Name?"],
        ),
        "home": (
            ("Graz", "Wien"),
            ["Ich wohne in {}.", "Ich lebe in {}."],
            ["Ich wohne jetzt in {}.", "Ich bin letzte Woche nach {} gezogen."],
            ["Wo wohne ich?", "In welcher Stadt wohne ich?"],
        ),
        "age": (
            ("30", "31"),
            ["Ich bin {} Jahre alt."],
            ["Ich bin jetzt {}."],
            ["Wie alt bin ich?"],
        ),
        "birthday": (
            ("9. Mai", "8. Mai"),
            ["Ich habe am {} Geburtstag.", "Mein Geburtstag ist am {}."],
            ["Nein, ich habe am {} Geburtstag."],
            ["Wann habe ich Geburtstag?"],
        ),
        "favourite": (
            ("Jasmin", "Rooibos"),
            ["Mein Lieblingstee ist {}."],
            ["Mein Lieblingstee ist jetzt {}.", "Ich mag {} lieber als Jasmin."],
            ["Was ist mein Lieblingstee?"],
        ),
        "diet": (
            ("Haselnüsse", ""),
            ["Ich bin allergisch gegen {}.", "Ich vertrage keine {}."],
            [],
            ["Was darf ich nicht essen?", "Wogegen bin ich allergisch?"],
        ),
        "job": (
            ("Lehrerin", "Ärztin"),
            ["Ich arbeite als {}."],
            ["Ich arbeite jetzt als {}."],
            ["Was ist mein Beruf?"],
        ),
        "sister": (
            ("Petra", ""),
            ["Meine Schwester heißt {}."],
            [],
            ["Wie heißt meine Schwester?"],
        ),
    },
    "French": {
        "name": (
            ("Anne", "Annette"),
            ["Je m'appelle {}.", "Mon nom est {}."],
            ["Je m'appelle maintenant {}."],
            ["Comment je m'appelle ?", "Quel est mon nom ?"],
        ),
        "home": (
            ("Lyon", "Paris"),
            ["J'habite à {}.", "Je vis à {}."],
            ["J'habite maintenant à {}.", "J'ai déménagé à {}."],
            ["Où est-ce que j'habite ?", "Dans quelle ville je vis ?"],
        ),
        "age": (("30", "31"), ["J'ai {} ans."], ["J'ai maintenant {} ans."], ["Quel âge ai-je ?"]),
        "birthday": (
            ("9 mai", "8 mai"),
            ["Mon anniversaire est le {}."],
            ["Non, mon anniversaire est le {}."],
            ["Quand est mon anniversaire ?"],
        ),
        "favourite": (
            ("vert", "bleu"),
            ["Ma couleur préférée est le {}."],
            ["Ma couleur préférée est maintenant le {}."],
            ["Quelle est ma couleur préférée ?"],
        ),
        "diet": (
            ("noisettes", ""),
            ["Je suis allergique aux {}.", "Je ne mange pas de {}."],
            [],
            ["Qu'est-ce que je ne dois pas manger ?", "Quels aliments dois-je éviter ?"],
        ),
        "job": (
            ("infirmière", "professeur"),
            ["Je travaille comme {}."],
            ["Je travaille maintenant comme {}."],
            ["Quel est mon métier ?"],
        ),
        "sister": (("Claire", ""), ["Ma sœur s'appelle {}."], [], ["Comment s'appelle ma sœur ?"]),
    },
    "Spanish": {
        "name": (
            ("Ana", "Anabel"),
            ["Me llamo {}.", "Mi nombre es {}."],
            ["Ahora me llamo {}."],
            ["¿Cómo me llamo?", "¿Cuál es mi nombre?"],
        ),
        "home": (
            ("Madrid", "Sevilla"),
            ["Vivo en {}.", "Yo vivo en {}."],
            ["Ahora vivo en {}.", "Me he mudado a {}."],
            ["¿Dónde vivo?", "¿En qué ciudad vivo?"],
        ),
        "age": (
            ("30", "31"),
            ["Tengo {} años."],
            ["Ahora tengo {} años."],
            ["¿Cuántos años tengo?"],
        ),
        "birthday": (
            ("9 de mayo", "8 de mayo"),
            ["Mi cumpleaños es el {}."],
            ["No, mi cumpleaños es el {}."],
            ["¿Cuándo es mi cumpleaños?"],
        ),
        "favourite": (
            ("verde", "azul"),
            ["Mi color favorito es el {}."],
            ["Mi color favorito es ahora el {}."],
            ["¿Cuál es mi color favorito?"],
        ),
        "diet": (
            ("avellanas", ""),
            ["Soy alérgica a las {}.", "No puedo comer {}."],
            [],
            ["¿Qué comida debo evitar?", "¿Qué no puedo comer?"],
        ),
        "job": (
            ("enfermera", "profesora"),
            ["Trabajo como {}."],
            ["Ahora trabajo como {}."],
            ["¿En qué trabajo?"],
        ),
        "sister": (("Clara", ""), ["Mi hermana se llama {}."], [], ["¿Cómo se llama mi hermana?"]),
    },
}
ROWS = [(language, kind) for language, kinds in FACTS.items() for kind in kinds]

# The tools of an agent whose messages are all in view, so that only the archive is searched.
ARCHIVING = ("archival_memory_insert", "archival_memory_search")


def talk_with(*lines: str) -> Talk:
    return Talk(blocks={"persona": "I keep the shelves.", "human": "\n".join(lines)})


@pytest.mark.parametrize(("language", "kind"), ROWS)
async def test_a_statement_is_stored_in_the_notes_and_found(language: str, kind: str) -> None:
    (value, _), told, _, asked = FACTS[language][kind]
    wrong = []
    for form, question in product(told, asked):
        talk = talk_with("Plays chess")
        await talk.says(form.format(value))
        if value not in talk.blocks["human"] or "Plays chess" not in talk.blocks["human"]:
            wrong.append(("not filed", form, talk.blocks["human"]))
        # The question is asked on another day, when only the notes are in view.
        talk.next_day().history.clear()
        answer = await talk.says(question)
        if value not in answer or question in talk.blocks["human"]:
            wrong.append(("not found", form, question, answer))
    assert wrong == []


@pytest.mark.parametrize(("language", "kind"), [row for row in ROWS if FACTS[row[0]][row[1]][2]])
async def test_a_changed_fact_replaces_the_old_one_and_is_found(language: str, kind: str) -> None:
    (old, new), told, changed, asked = FACTS[language][kind]
    wrong = []
    for form, change in product(told, changed):
        talk = talk_with("Plays chess")
        await talk.says(form.format(old))
        answer = await talk.says(change.format(new))
        lines = talk.blocks["human"].split("\n")
        is_right = new in talk.blocks["human"] and not any(
            old in line and new not in line for line in lines
        )
        if not is_right or "Plays chess" not in lines or "corrected" not in answer:
            wrong.append(("not corrected", form, change, lines, answer))
        found = await talk.says(asked[0])
        if new not in found:
            wrong.append(("not found", change, asked[0], found))
    assert wrong == []


@pytest.mark.parametrize(("language", "kind"), [row for row in ROWS if FACTS[row[0]][row[1]][2]])
async def test_a_correction_keeps_the_rest_of_the_line(language: str, kind: str) -> None:
    (old, new), told, changed, _ = FACTS[language][kind]
    keeps = {
        "English": "I play chess",
        "German": "Ich spiele Schach",
        "French": "Je joue aux échecs",
        "Spanish": "Juego al ajedrez",
    }[language]
    wrong = []
    for form, change in product(told, changed):
        before = f'2026-01-02: "{keeps}. {form.format(old)}"'
        talk = talk_with(before)
        await talk.says(change.format(new))
        after = talk.blocks["human"]
        if keeps not in after or new not in after or old in after.replace(new, ""):
            if change.startswith(("I prefer", "Ich mag")) and keeps in after and new in after:
                continue  # the new line names the old value itself
            wrong.append((before, change, after))
    assert wrong == []


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (
            "I'm Lena, I live in Graz and work as a nurse at the LKH.",
            ["I'm Lena", "I live in Graz", "I work as a nurse at the LKH."],
        ),
        ("I live in Turin and I teach maths.", ["I live in Turin", "I teach maths."]),
        (
            "Ich bin 30, wohne in Graz und arbeite als Lehrerin.",
            ["Ich bin 30", "Ich wohne in Graz", "Ich arbeite als Lehrerin."],
        ),
        ("Ich heiße Lena und ich wohne in Graz.", ["Ich heiße Lena", "ich wohne in Graz."]),
        (
            "Je m'appelle Anne, j'habite à Lyon et travaille comme infirmière.",
            ["Je m'appelle Anne", "j'habite à Lyon", "Je travaille comme infirmière."],
        ),
        ("Me llamo Ana y vivo en Madrid.", ["Me llamo Ana", "vivo en Madrid."]),
    ],
)
async def test_each_fact_of_a_sentence_gets_its_own_line(told: str, lines: list[str]) -> None:
    talk = talk_with()
    await talk.says(told)
    assert [
        line.partition('"')[2].removesuffix('"') for line in talk.blocks["human"].split("\n")
    ] == lines


@pytest.mark.parametrize(
    "told",
    [
        "I like tea because I live in Graz and work at night.",
        "My sister, who lives in Graz and works at night, is a nurse.",
        "Wir haben gestern den alten Schuppen gestrichen, obwohl es geregnet hat.",
        "Bread and butter is what I like and need.",
        "Zgubiłem klucze do piwnicy.",
        "Oggi piove.",
        "Je crois que la clé est sous le pot et que le pot est rouge.",
    ],
)
async def test_sentences_that_cannot_be_split_are_stored_verbatim(told: str) -> None:
    talk = talk_with("Plays chess")
    await talk.says(told)
    filed = [
        talk.blocks["human"],
        *(text for _, text, _ in talk.archive),
        *(str(entry) for entry in talk.archive),
    ]
    assert any(told in text for text in filed)
    assert "Plays chess" in talk.blocks["human"]


@pytest.mark.parametrize(
    ("language", "kind"),
    # The replacement searches by words, so it does not find "I'm 31 now.".
    [row for row in ROWS if FACTS[row[0]][row[1]][2] and row[1] != "age"],
)
async def test_without_a_notes_block_the_later_statement_is_answered(
    language: str, kind: str
) -> None:
    (old, new), told, changed, asked = FACTS[language][kind]
    wrong = []
    for form, change in product(told, changed):
        talk = Talk(tools=ARCHIVING, blocks={"persona": "I keep the shelves."})
        await talk.says(form.format(old))
        await talk.says(change.format(new))
        answer = await talk.says(asked[0])
        if new not in answer or (old in answer.replace(new, "") and old not in change):
            wrong.append((form, change, asked[0], answer))
    assert wrong == []


async def test_a_long_dialogue_leaves_only_current_facts_in_the_notes() -> None:
    talk = talk_with()
    for said in (
        "Hi! I'm Lena, I live in Graz and work as a nurse at the LKH.",
        "I have a dog called Bruno, he is a 4 year old beagle.",
        "My favourite tea is jasmine.",
        "Sorry, I got that wrong: Bruno is 5, not 4.",
        "Actually I've changed my mind about tea: I prefer rooibos to jasmine now.",
        "I moved to Vienna last week.",
    ):
        await talk.says(said)
    notes = talk.blocks["human"]
    for fact in ("Lena", "nurse", "LKH", "Vienna", "Bruno", "5 year old beagle", "rooibos"):
        assert fact in notes
    for fact in ("Graz", "4 year", "favourite tea is jasmine"):
        assert fact not in notes
    answer = await talk.says("What is my name, and what is my job?")
    assert "Lena" in answer
    assert "nurse" in answer
    answer = await talk.says("Where do I work and in which city do I live?")
    assert "LKH" in answer
    assert "Vienna" in answer
    assert "Graz" not in answer
    await talk.says("He is 6 now.")
    assert "6 year old beagle" in talk.blocks["human"]
