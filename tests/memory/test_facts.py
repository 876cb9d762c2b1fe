# ruff: noqa: E501 - tables of what people say
"""Facts as people state them in four languages, and the line that a new fact replaces."""

from itertools import product

import pytest

from ricordo.memory import facts
from ricordo.memory.fact_lines import with_correction, with_fact
from ricordo.memory.facts import contrasts_in, corrects, facts_in, revision_of

# The kind, its values, and the sentences that state it in each language. A sentence of the second
# list states a new value.
FORMS = {
    "name": (
        [("Lena", "Petra"), ("Ada Lovelace", "Mia")],
        ["My name is {}.", "Ich heiße {}.", "Mein Name ist {}.", "Je m'appelle {}.", "Me llamo {}.", "Mi nombre es {}."],
        ["My name is now {}.", "Ich heiße jetzt {}.", "Je m'appelle maintenant {}.", "Mi nombre es ahora {}."],
    ),
    "home": (
        [("Graz", "Wien"), ("San Sebastián", "New York"), ("Bad Ischl", "Linz")],
        ["I live in {}.", "We live in {}.", "Ich wohne in {}.", "Ich lebe in {}.", "J'habite à {}.", "Je vis à {}.", "Vivo en {}.", "Lives in {}."],
        ["I live in {} now.", "I moved to {} last week.", "I've moved to {}!", "Ich wohne jetzt in {}.", "Ich bin letzte Woche nach {} gezogen.", "J'habite maintenant à {}.", "J'ai déménagé à {}.", "Ahora vivo en {}.", "Me he mudado a {}."],
    ),
    "age": (
        [("30", "31"), ("9", "10")],
        ["I'm {}.", "I am {} years old.", "Ich bin {} Jahre alt.", "J'ai {} ans.", "Tengo {} años."],
        ["I'm {} now.", "I turned {}.", "Ich bin jetzt {}.", "J'ai maintenant {} ans.", "Ahora tengo {} años."],
    ),
    "birthday": (
        [("9 May", "10 June"), ("3 March", "1 January")],
        ["My birthday is on {}.", "I was born on {}.", "Ich habe am {} Geburtstag.", "Mein Geburtstag ist am {}.", "Mon anniversaire est le {}.", "Mi cumpleaños es el {}."],
        ["My birthday is actually on {}.", "Ich habe am {} Geburtstag.", "Mi cumpleaños es el {}."],
    ),
    "favourite": (
        [("jasmine", "rooibos"), ("green", "blue")],
        ["My favourite thing is {}.", "My favorite thing is {}."],
        ["My favourite thing is now {}.", "My favourite is now {}.", "My favourite thing is {} now."],
    ),
    "favourite (German)": ([("Jasmin", "Rooibos")], ["Mein Lieblingstee ist {}."], ["Mein Lieblingstee ist jetzt {}."]),
    "favourite (French)": ([("vert", "bleu")], ["Ma couleur préférée est {}."], ["Ma couleur préférée est maintenant {}."]),
    "favourite (Spanish)": ([("verde", "azul")], ["Mi color favorito es {}."], ["Mi color favorito es ahora {}."]),
}  # fmt: skip
# Other text of a line, before or after the fact.
AROUND = ["{}", "{} I have a cat.", "I have a cat. {}"]


@pytest.mark.parametrize("kind", FORMS)
def test_a_new_fact_replaces_the_old_one_and_the_rest_of_the_line_stays(
    kind: str,
) -> None:
    values, forms, newer = FORMS[kind]
    wrong = []
    for (old, new), form, change, around in product(values, forms, newer, AROUND):
        line, statement = around.format(form.format(old)), change.format(new)
        revised = revision_of(["Likes tea.", line], statement)
        is_right = (
            revised and revised.index == 1 and new in revised.line and old not in revised.line
        )
        if not is_right or ("cat" in line) != ("cat" in revised.line):
            wrong.append((line, statement, revised))
    assert wrong == []


@pytest.mark.parametrize("kind", FORMS)
def test_a_fact_does_not_replace_one_of_another_kind(kind: str) -> None:
    (old, _), *_ = FORMS[kind][0]
    lines = [form.format(old) for form in FORMS[kind][1]]
    for other, (values, _, newer) in FORMS.items():
        if other.partition(" ")[0] != kind.partition(" ")[0]:
            for statement in (change.format(values[0][1]) for change in newer):
                assert revision_of(lines, statement) is None, statement


@pytest.mark.parametrize(
    ("line", "statement", "revised"),
    [
        ("I'm Lena, I live in Graz and work as a nurse.", "I moved to Vienna.", "I'm Lena, I live in Vienna and work as a nurse."),
        ("I have a dog called Bruno, he is a 4 year old beagle.", "He is 5 now.", "I have a dog called Bruno, he is a 5 year old beagle."),
        ("I have a dog called Bruno, he is a 4 year old beagle.", "Sorry, I got that wrong: Bruno is 5, not 4.", "I have a dog called Bruno, he is a 5 year old beagle."),
        ("My cat is grey and fat.", "No, my cat is black, not grey.", "My cat is black and fat."),
        ("My favourite tea is jasmine.", "I prefer rooibos to jasmine now.", "I prefer rooibos to jasmine now."),
        ("I prefer rooibos to jasmine.", "My favourite tea is jasmine.", "My favourite tea is jasmine."),
        ("Mein Lieblingstee ist Jasmin.", "Ich mag Rooibos lieber als Jasmin.", "Ich mag Rooibos lieber als Jasmin."),
        ("My exam is on Monday in Graz.", "The exam is not on Monday but Tuesday.", "My exam is on Tuesday in Graz."),
        ("Die Prüfung ist am Montag in Graz.", "Die Prüfung ist nicht am Montag, sondern am Dienstag.", "Die Prüfung ist am Dienstag in Graz."),
        ("L'examen est lundi à Lyon.", "L'examen n'est pas lundi, mais mardi.", "L'examen est mardi à Lyon."),
        ("El examen es el lunes en Madrid.", "El examen no es el lunes, sino el martes.", "El examen es el martes en Madrid."),
        ("Lives in Graz.", "Moved from Graz to Vienna.", "Lives in Vienna."),
        ("I work as a nurse.", "I work as a teacher now.", "I work as a teacher now."),
        ("My email is a@example.com.", "My new email is b@example.com.", "My new email is b@example.com."),
        ("Bruno is 4. Mia is 9.", "Bruno is 5 now.", "Bruno is 5. Mia is 9."),
        ("Mi perro tiene 4 años y se llama Toro.", "Mi perro tiene 5 años.", "Mi perro tiene 5 años y se llama Toro."),
    ],
)  # fmt: skip
def test_a_correction_of_one_fact_keeps_the_others(line: str, statement: str, revised: str) -> None:
    found = revision_of([line], statement)
    assert found
    assert found.line == revised


@pytest.mark.parametrize(
    ("line", "statement"),
    [
        ("I live in Graz.", "Petra lives in Linz."),
        ("My sister lives in Graz.", "My brother lives in Linz."),
        ("I'm 30.", "He is 5 now."),
        ("Bruno is 4.", "Mia is 9."),
        ("My favourite tea is jasmine.", "My favourite colour is green."),
        ("I like jasmine.", "I like rooibos."),
        ("I work as a nurse.", "I work as a gardener in my free time."),
        ("My sister's name is Petra.", "My name is Lena."),
        ("I live in Graz.", "I live in Graz."),
        ("My locker is 12.", "My exam is on 3 March 2027."),
        ("I speak French.", "I speak Italian."),
    ],
)
def test_a_fact_that_does_not_contradict_a_line_replaces_nothing(line: str, statement: str) -> None:
    assert revision_of([line], statement) is None


def test_a_pronoun_refers_to_the_subject_named_before_it() -> None:
    (_, age) = facts_in("I have a dog called Bruno, he is a 4 year old beagle.")
    assert (age.subject, age.kind, age.value) == ("bruno", "age", "4")


@pytest.mark.parametrize("text", ["No, green.", "Nein, grün.", "Non, vert.", "Perdón, verde.", "It is green now.", "Er ist jetzt grün.", "Ahora es verde.", "C'est maintenant vert."])  # fmt: skip
def test_a_correction_is_recognized_in_each_language(text: str) -> None:
    assert corrects(text)
    assert not corrects("I like tea.")


def test_a_contrast_names_the_new_value_and_the_old_one() -> None:
    said = ["5, not 4", "not 4 but 5", "nicht 4, sondern 5", "pas 4, mais 5", "no 4, sino 5"]
    assert {(one.new, one.old) for text in said for one in contrasts_in(text)} == {("5", "4")}


def test_lines_of_facts_are_added_once_corrected_and_removed() -> None:
    assert with_fact("", "* Likes tea.") is not None
    assert with_fact("Likes tea.", "likes tea") is None
    added = with_fact("Likes tea.", "1. Has a cat.")
    assert added is not None
    assert added.value == "Likes tea.\nHas a cat."
    struck = with_correction("Likes tea.\nHas a cat.", "the cat", "")
    assert struck is not None
    assert struck.value == "Likes tea."
    long = with_fact("", "word " * 1000)
    assert long is not None
    assert len(long.value) == 400


FACTS = ("Has a cat", "Likes tea", "Paid 3", "Drinks coffee", "Hat eine Katze")
LONGER = (
    "{} allergy",
    "{}.5 of it",
    "{},5 of it",
    "Never {}",
    "{} bowls.",
    "Says that she {}",
)
SAME = (
    "{}",
    "- {}.",
    "2. {}",
    "{}, and more",
    "Reads. {}!",
    "She reads; {}.",
    "The user {}",
    "* Sie  {}.",
    "{}. Reads.",
)


@pytest.mark.parametrize(("fact", "longer"), list(product(FACTS, LONGER)))
def test_a_fact_within_a_longer_statement_is_a_new_fact(fact: str, longer: str) -> None:
    line = longer.format(fact)
    for other in (fact, fact.lower(), f"{fact}."):
        edit = with_fact(line, other)
        assert edit is not None, line
        assert edit.after == other


@pytest.mark.parametrize(("fact", "same"), list(product(FACTS, SAME)))
def test_a_fact_that_a_line_says_as_a_sentence_is_not_added_again(fact: str, same: str) -> None:
    for other in (fact, fact.upper(), f"{fact}."):
        assert with_fact(f"Sings.\n{same.format(fact)}", other) is None


@pytest.mark.parametrize(
    ("line", "old"),
    [
        ("My dog is called Rex.", "my diagnosis"),
        ("My dog is called Rex.", "it is my address"),
        ("It likes to swim.", "it"),
        ("Meine Katze heißt Mia.", "meine Adresse"),
        ("Mi perro es Bobi.", "mi dirección"),
        ("Mon chien s'appelle Rex.", "mon adresse"),
        ("Il mio cane si chiama Rex.", "il mio indirizzo"),
    ],
)
def test_a_word_such_as_my_names_no_line(line: str, old: str) -> None:
    assert with_correction(line, old, "") is None
    struck = with_correction(line, line, "")
    assert struck is not None
    assert struck.value == ""


# Subjects that can live somewhere, and subjects that cannot, with the verb and the places that may
# follow.
LIVES = {
    "English": (
        ["My sister", "My best friend Anna", "Our landlord", "Emma", "She", "My parents"],
        ["The whole code", "The cat in the picture", "Everything", "My data", "The server process", "This setting", "Our documentation"],
        ["lives in", "lives near"],
        ["Graz", "New York"],
        ["a folder", "the repository", "Git"],
    ),
    "German": (
        ["Meine Schwester", "Mein bester Freund", "Emma", "Sie"],
        ["Der ganze Code", "Das Projekt", "Unsere Dokumentation", "Alles", "Diese Einstellung"],
        ["lebt in"],
        ["Graz", "Bad Ischl"],
        ["einem Ordner", "der Datenbank", "Git"],
    ),
    "French": (
        ["Ma sœur", "Mon meilleur ami", "Emma", "Elle"],
        ["Le code", "La documentation", "Tout", "Cette option"],
        ["vit dans", "vit à"],
        ["Lyon", "Paris"],
        ["un dossier", "la base", "Git"],
    ),
    "Spanish": (
        ["Mi hermana", "Mi mejor amigo", "Emma", "Ella"],
        ["El código", "La documentación", "Todo", "Esta opción"],
        ["vive en"],
        ["Madrid", "San Sebastián"],
        ["una carpeta", "la base", "Git"],
    ),
    "Italian": (
        ["Mia sorella", "Il mio collega", "Emma", "Lei"],
        ["Il codice", "La documentazione", "Tutto", "Questa opzione"],
        ["vive a", "abita a"],
        ["Torino", "Lecce"],
        ["una cartella", "la base", "Git"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("language", LIVES)
def test_only_people_have_homes(language: str) -> None:
    people, things, verbs, places, others = LIVES[language]
    homes = {
        f"{subject} {verb} {place}.": [
            fact.value for fact in facts_in(f"{subject} {verb} {place}.") if fact.kind == "home"
        ]
        for subject, verb, place in product((*people, *things), verbs, (*places, *others))
    }
    expected = {
        text: [place]
        for subject, verb, place in product(people, verbs, places)
        for text in [f"{subject} {verb} {place}."]
    }
    wrong = {text: homes[text] for text in expected if homes[text] != expected[text]}
    wrong |= {
        text: homes[text]
        for subject, verb, place in product(things, verbs, (*places, *others))
        for text in [f"{subject} {verb} {place}."]
        if homes[text]
    }
    wrong |= {
        text: homes[text]
        for subject, verb, place in product(people, verbs, others[:1])
        for text in [f"{subject} {verb} {place}."]
        if homes[text]
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "text",
    [
        "My sister is a nurse and lives in Graz.",
        "Sara works at the LKH and now lives in Graz.",
        "People living in Vienna pay less.",
        "I know someone who lives in Graz.",
        "Living in Graz is expensive.",
    ],
)
def test_another_persons_home_is_not_the_users_home(text: str) -> None:
    assert [fact for fact in facts_in(text) if (fact.kind, fact.subject) == ("home", "")] == []


# By kind: the older statement's sentences and value, and other sentences for a newer value.
CHANGED = {
    "home": (
        ["I live in {}.", "I just moved to {}, Texas.", "Ich wohne in {}.", "J'habite à {}.", "Vivo en {}.", "Abito a {}."],
        [
            "I'm all settled in {} now.", "I've settled down in {}.", "We are finally settled in {}.",
            "Ich habe mich in {} gut eingelebt.", "Je me suis installée à {}.",
            "Me he instalado en {}.", "Mi sono stabilita a {}.",
        ],
        [("Austin", "Denver"), ("Graz", "Lyon")],
    ),
    "workplace": (
        ["I work as an analyst at {}.", "I work for {}."],
        [
            "I've officially started at {} now.", "I just started work at {}, so that is new now.",
            "I got a new job at {} now.", "I have joined {} as a scientist now.",
            "Ich habe jetzt bei {} angefangen.", "J'ai maintenant commencé chez {}.",
            "Ahora he empezado en {}.", "Ora ho iniziato a lavorare da {}.",
        ],
        [("Fiat", "Ferrari"), ("Siemens", "Acme")],
    ),
    "favourite": (
        ["My favourite programming language is {}.", "My favorite language is {}."],
        [
            "I have to say, {} is now my favorite language.", "{} is my favourite language now.",
            "Honestly, {} is now my favourite programming language.",
        ],
        [("Java", "Rust"), ("Perl", "Go")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGED)
def test_a_newer_value_in_other_words_replaces_the_older_one(kind: str) -> None:
    forms, changes, values = CHANGED[kind]
    wrong = []
    for form, change, (old, new) in product(forms, changes, values):
        revised = revision_of([form.format(old)], change.format(new))
        if revised is None or new not in revised.line or old in revised.line:
            wrong.append((form.format(old), change.format(new), revised))
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "statement"),
    [
        ("My favourite programming language is Java.", "My favourite language is Italian."),
        ("I work for Fiat.", "My sister started at Ferrari now."),
        ("I live in Graz.", "My brother is settled in Vienna now."),
        ("My favourite tea is mint.", "Blue is now my favourite colour."),
        ("I work for Fiat.", "I started at noon now."),
    ],
)
def test_a_newer_value_of_something_else_changes_nothing(line: str, statement: str) -> None:
    assert revision_of([line], statement) is None


def test_the_caches_of_facts_keep_only_the_part_of_a_text_that_is_read() -> None:
    long = "I live in Turin. My son is 5, not 4. " * 50
    texts = [long + str(number) for number in range(20)]
    for text in texts:
        assert facts_in(text) == facts_in(texts[0])
        assert contrasts_in(text) == contrasts_in(texts[0])
    for cached in (facts._facts_in, facts._contrasts_in):
        before = cached.cache_info().currsize
        for number in range(20):
            facts_in(long + f"again {number}")
            contrasts_in(long + f"again {number}")
        assert cached.cache_info().currsize == before
