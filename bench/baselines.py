"""Searches for comparison: plain BM25, and SQLite's FTS5."""

import math
import re
import sqlite3
from collections import Counter

from bench.locomo import Conversation, Question

_WORD = re.compile(r"\w+")
LIMIT = 20


def _document(speaker: str, text: str) -> str:
    return f"{speaker}: {text}"


class PlainBm25:
    """The BM25 of textbooks: lower case, no stemming, no stop words, k1 = 1.2, b = 0.75."""

    name = "plain BM25"

    def __init__(self, conversation: Conversation) -> None:
        self._ids = [turn.id for turn in conversation.turns]
        texts = [_document(turn.speaker, turn.text) for turn in conversation.turns]
        self._counts = [Counter(_WORD.findall(text.lower())) for text in texts]
        self._holders = Counter(word for count in self._counts for word in count)
        mean = sum(count.total() for count in self._counts) / len(self._counts)
        self._weakening = [1.2 * (0.25 + 0.75 * count.total() / mean) for count in self._counts]

    def search(self, question: Question) -> list[str]:
        """Return the best turns, best first."""
        scores = [0.0] * len(self._ids)
        for word in dict.fromkeys(_WORD.findall(question.text.lower())):
            holders = self._holders[word]
            rarity = math.log(1 + (len(self._ids) - holders + 0.5) / (holders + 0.5))
            for number, count in enumerate(self._counts):
                if times := count[word]:
                    scores[number] += rarity * 2.2 * times / (times + self._weakening[number])
        best = sorted(range(len(scores)), key=lambda number: -scores[number])
        return [self._ids[number] for number in best[:LIMIT] if scores[number]]


class Fts5:
    """SQLite's FTS5 with the Porter stemmer: turns with a word of the question, by its bm25()."""

    name = "FTS5, porter"

    def __init__(self, conversation: Conversation) -> None:
        self._ids = [turn.id for turn in conversation.turns]
        self._database = sqlite3.connect(":memory:")
        self._database.execute("create virtual table turns using fts5(text, tokenize='porter')")
        self._database.executemany(
            "insert into turns(rowid, text) values (?, ?)",
            [
                (number, _document(turn.speaker, turn.text))
                for number, turn in enumerate(conversation.turns)
            ],
        )

    def search(self, question: Question) -> list[str]:
        """Return the best turns, best first."""
        words = dict.fromkeys(_WORD.findall(question.text.lower()))
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._database.execute(
            "select rowid from turns where turns match ? order by bm25(turns) limit ?",
            (query, LIMIT),
        )
        return [self._ids[number] for (number,) in rows]
