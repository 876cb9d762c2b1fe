# ruff: noqa: E501 - tables of what people say
"""Sentences that suppose, doubt, dream or quote are no facts about the person who writes them."""

from itertools import product

import pytest

from ricordo.domain.clock import DAY
from ricordo.features.knowledge.facts.extraction import drafts_in

NOW = 20_000 * DAY
# By language: statements that are facts, phrases that make a statement no fact, and phrases that
# leave it a fact. Within a sentence a statement begins with a small letter if it can.
FRAMES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "English": (
        ["I live in Graz", "I work as a nurse", "I bought a boat", "I will move to Rome", "I like tea", "I have a dog", "I am going to marry Ben"],
        [
            'My friend said "{}"', "She told me: “{}.”", "The song goes “{} and so on”", "In my dream {}", "I dreamt that {}",
            "In the story that I write {}", "Maybe {}", "I'm not sure whether {}", "I don't know if {}", "Imagine {}", "For example: {}",
            "People look at me as if {}", "He claims that “{}”", "Nobody asked whether {}", "Let's pretend {}", "It would be odd to say {}",
        ],
        ["{}", "As I said, {}", "Just so you know, {}", "By the way, {}", "{}, as my mother says", 'My dog is called "Bruno" and {}'],
    ),
    "German": (
        ["Ich wohne in Graz", "Ich arbeite als Lehrerin", "Ich habe ein Boot gekauft", "Ich werde nach Rom ziehen", "Ich mag Tee"],
        [
            "Mein Freund sagte: „{}“", "Sie meinte: »{}.«", "Ich habe geträumt: {}", "Vielleicht stimmt es: {}", "Zum Beispiel: {}",
            "Nehmen wir an: {}", "In meiner Geschichte heißt es: {}", "Es wäre komisch zu sagen: {}",
        ],
        ["{}", "Übrigens: {}", "Wie gesagt: {}"],
    ),
    "French": (
        ["J'habite à Lyon", "Je travaille comme infirmière", "J'ai acheté un bateau", "Je vais déménager", "J'aime le thé"],
        [
            "Mon ami a dit : « {} »", "Elle répète “{}”", "J'ai rêvé que {}", "Peut-être que {}", "Je ne sais pas si {}", "Par exemple : {}",
            "Imaginons que {}", "Dans mon histoire, {}", "On me regarde comme si {}",
        ],
        ["{}", "Au fait, {}", "Comme je l'ai dit, {}"],
    ),
    "Spanish": (
        ["Vivo en Madrid", "Trabajo como enfermera", "Compré un barco", "Voy a mudarme", "Me gusta el té"],
        [
            "Mi amigo dijo: «{}»", "Ella repite “{}”", "Soñé que {}", "Quizás {}", "No sé si {}", "Por ejemplo: {}", "Imaginemos que {}",
            "En mi cuento {}", "Me miran como si {}",
        ],
        ["{}", "Por cierto, {}", "Como dije, {}"],
    ),
    "Italian": (
        ["Vivo a Torino", "Lavoro come infermiera", "Ho comprato una barca", "Voglio trasferirmi", "Mi piace il tè"],
        [
            "Il mio amico ha detto: «{}»", "Lei ripete “{}”", "Ho sognato che {}", "Forse {}", "Non so se {}", "Per esempio: {}",
            "Immaginiamo che {}", "Nella mia storia {}", "Mi guardano come se {}",
        ],
        ["{}", "A proposito, {}", "Come ho detto, {}"],
    ),
}  # fmt: skip


def placed(frame: str, statement: str) -> str:
    """Return a statement within a phrase, with a small first letter inside a sentence."""
    is_inside = not frame.startswith("{}") and not frame.rstrip('{}”“"«»„ ').endswith(":")
    if is_inside and not statement.startswith(("I ", "I'")):
        statement = statement[0].lower() + statement[1:]
    return f"{frame.format(statement)}."


def facts_in(text: str) -> list[str]:
    return [draft.sentence for draft in drafts_in("message-1", text, NOW)]


@pytest.mark.parametrize("language", FRAMES)
def test_hypothetical_doubted_and_quoted_statements_are_no_facts(language: str) -> None:
    statements, frames, _ = FRAMES[language]
    texts = [placed(frame, statement) for frame, statement in product(frames, statements)]
    junk = {text: found for text in texts if (found := facts_in(text))}
    assert junk == {}


@pytest.mark.parametrize("language", FRAMES)
def test_affirmed_statements_are_facts(language: str) -> None:
    statements, _, frames = FRAMES[language]
    texts = [placed(frame, statement) for frame, statement in product(frames, statements)]
    assert [text for text in texts if not facts_in(text)] == []


# Plans and events of the conversation itself, and some lasting ones.
OPENINGS = {
    "English": (["Perfect, ", "OK, ", "Good, then ", "Great! "], ["I'll go with that", "I'll try it", "I will check the second one", "I'll let you know"]),
    "German": (["Perfekt, ", "OK, ", "Gut, dann "], ["werde ich das machen", "nehme ich den zweiten", "probiere ich das"]),
    "French": (["Parfait, ", "OK, ", "Merci, alors "], ["je vais l'essayer", "je vais le faire", "je prends le premier"]),
    "Spanish": (["Perfecto, ", "Vale, ", "Gracias, entonces "], ["voy a probarlo", "lo haré", "me quedo con eso"]),
    "Italian": (["Perfetto, ", "OK, ", "Grazie, allora "], ["lo farò", "lo provo", "lo prendo"]),
}  # fmt: skip
LASTS = [
    "I'll move to Rome next year.", "I want to become a nurse.", "I bought a boat.", "We will marry in May.", "I passed my exam.",
    "Ich werde nach Rom ziehen.", "Ich habe ein Boot gekauft.", "Je vais déménager à Lyon.", "J'ai acheté un bateau.",
    "Voy a mudarme a Madrid.", "Compré un barco.", "Voglio trasferirmi a Torino.", "Ho comprato una barca.",
]  # fmt: skip


@pytest.mark.parametrize("language", OPENINGS)
def test_short_answers_are_no_plans(language: str) -> None:
    openings, answers = OPENINGS[language]
    texts = [f"{opening}{answer}." for opening, answer in product(openings, answers)]
    assert {text: found for text in texts if (found := facts_in(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "I want to ask about the contract.",
        "I've got to admit that I was wrong.",
        "I was wondering about the second draft.",
        "I just tried that.",
        "Ich will nur wissen, was das heißt.",
        "Je veux savoir ce que cela veut dire.",
        "Quiero saber qué significa.",
        "Voglio sapere che cosa significa.",
    ],
)
def test_statements_about_the_conversation_are_no_facts(text: str) -> None:
    assert facts_in(text) == []


@pytest.mark.parametrize("text", LASTS)
def test_lasting_plans_and_events_are_facts(text: str) -> None:
    assert len(facts_in(text)) == 1
