"""Pairs of facts made from long chats: contradictions are found, other facts left alone.

The sentences of `pairs.py` are chosen by hand. These are made at random from a data set's words,
and from its people's statements about themselves.
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from random import Random

import pytest

from bench import locomo
from bench.retrieval import LONGTALK
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.records import FactDraft
from ricordo.search.words import terms
from tests.features.knowledge.facts.conftest import FactBook

DATABASES = ("sqlite", "postgresql")
# For each language: two sentences about a thing, where the second contradicts the first.
TAKEN_BACK = {
    "en": ("I like {}.", "I don't like {} any more."),
    "de": ("Ich mag {}.", "Ich mag {} nicht."),
    "fr": ("J'aime {}.", "Je n'aime plus {}."),
    "es": ("Me gusta {}.", "Ya no me gusta {}."),
    "it": ("Mi piace {}.", "Non mi piace più {}."),
}
# Two sentences about something that has one value at a time.
CHANGED = {
    "en": ("My favourite {topic} is {}.", "My favourite {topic} is now {}."),
    "de": ("Ich wohne in {}.", "Ich wohne jetzt in {}."),
    "fr": ("J'habite à {}.", "J'habite maintenant à {}."),
    "es": ("Vivo en {}.", "Ahora vivo en {}."),
    "it": ("Abito a {}.", "Ora abito a {}."),
}
TOPICS = ("drink", "game", "tree", "song", "tool", "city", "meal", "sport", "book", "film")


@cache
def things() -> list[str]:
    """Return words of the data set that name something, each with a different stem."""
    seen: dict[str, str] = {}
    for conversation in locomo.read(LONGTALK):
        for turn in conversation.turns:
            for word in turn.text.split():
                plain = word.strip(".,;:!?()").lower()
                if plain.isascii() and plain.isalpha() and 5 < len(plain) < 12:
                    stem = " ".join(terms(plain))
                    if stem:
                        seen.setdefault(stem, plain)
    return [word for stem, word in sorted(seen.items()) if " " not in stem]


def sample_things(seed: int, count: int) -> list[str]:
    return Random(seed).sample(things(), count)  # noqa: S311 - repeatable


@cache
def facts_of_the_data_set() -> list[FactDraft]:
    """Return the facts that the rules read from the data set's users."""
    drafts: list[FactDraft] = []
    for conversation in locomo.read(LONGTALK):
        for turn in conversation.turns:
            if turn.role == "user":
                drafts += drafts_in(turn.id, turn.text, round(turn.said_at.timestamp() * 1e6))
    return drafts


@pytest.mark.parametrize("language", TAKEN_BACK)
async def test_retracted_and_changed_facts_end(book: FactBook, language: str) -> None:
    missed = []
    for number, thing in enumerate(sample_things(1, 5)):
        before, after = TAKEN_BACK[language]
        if language == "de":
            thing = thing.capitalize()  # noqa: PLW2901
        missed += await _left_standing(book, before.format(thing), after.format(thing))
        first, second = (word.capitalize() for word in sample_things(20 + number, 2))
        before, after = CHANGED[language]
        topic = TOPICS[number]
        missed += await _left_standing(
            book, before.format(first, topic=topic), after.format(second, topic=topic)
        )
    assert not missed, missed


async def _left_standing(book: FactBook, before: str, after: str) -> list[str]:
    """Return the pair, unless only the second sentence holds afterwards."""
    await book.say(before)
    await book.say(after)
    current = {fact.sentence for fact in await book.facts("current")}
    if after in current and before not in current:
        return []
    return [f"{before} -> {after}"]


async def test_unrelated_generated_facts_never_end_each_other(book: FactBook) -> None:
    words = sample_things(7, 60)
    sentences = list(_about(words))
    pairs = Random(8).sample(list(combinations(sentences, 2)), 200)  # noqa: S311 - repeatable
    assert len(set(pairs)) == 200
    for sentence in sentences:
        await book.say(sentence)
    assert await book.facts("ended", "replaced") == []
    kept = {fact.sentence for fact in await book.facts("current")}
    assert kept == set(sentences)


def _about(words: list[str]) -> Iterator[str]:
    """Yield sentences, no two of which are about the same thing."""
    forms = ("I like {}.", "I play {}.", "I have a {}.", "I went to {} last year.")
    for number, word in enumerate(words[:40]):
        yield forms[number % len(forms)].format(word)
    for topic, word in zip(TOPICS, words[40:], strict=False):
        yield f"My favourite {topic} is {word}."


async def test_facts_from_long_chats_end_only_facts_of_the_same_slot(book: FactBook) -> None:
    """Facts of five people are stored for one user: a fact may end only facts of its own slot."""
    drafts = facts_of_the_data_set()
    assert len(drafts) > 200
    sentences = list(dict.fromkeys(draft.sentence for draft in drafts))
    for start in range(0, len(sentences), 40):
        await book.say(*sentences[start : start + 40])
    by_id = {fact.id: fact for fact in await book.facts("current", "ended", "replaced")}
    retired = [fact for fact in by_id.values() if fact.state in ("ended", "replaced")]
    for fact in retired:
        if fact.replacement_id is None:
            continue  # a past period, such as "I lived there from 2010 to 2012"
        newer = by_id[fact.replacement_id]
        assert fact.subject == newer.subject
        names = {fact.slot.partition(":")[0], newer.slot.partition(":")[0]}
        assert fact.slot == newer.slot or names <= {"favourite", "preference", "likes"}, (
            fact.sentence,
            newer.sentence,
        )


def test_spanish_instructions_are_told_apart_from_english_sentences_with_no() -> None:
    wishes = ("No me llames María.", "No uses emojis.", "Siempre responde en español.")
    others = ("No worries, John.", "No classes today.", "No problems with the boat.")
    kinds = {text: [draft.kind for draft in drafts_in("m", text, 0)] for text in (*wishes, *others)}
    assert [kinds[text] for text in wishes] == [["instruction"]] * len(wishes)
    assert not [text for text in others if "instruction" in kinds[text]]
