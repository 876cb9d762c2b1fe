"""`python -m bench.paraphrases`: how well the list of what to forget finds other words.

The pairs of `bench/data/paraphrases.toml` are in five languages, and half of them are no
paraphrase. Things and their translations stay together. The first four things of each language are
one half, and the others are the other half. A threshold is chosen on one half and measured on the
other; then the two halves are swapped.

Half of the pairs are paraphrases, but in a memory nearly every sentence is about something else. So
a threshold is allowed only if the things in English list at most ten of 1,000 sentences of
longtalk's users. Each half chooses the allowed threshold with the best F1.
"""

import argparse
import json
import lzma
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ricordo.features.memory_care.forgetting.meaning import LEAST_ALIKE, likeness
from ricordo.features.memory_care.forgetting.needle import Needle
from ricordo.memory.statements import sentences

DATA = Path(__file__).parent / "data"
LONGTALK = DATA / "longtalk-dev.json.xz"
THRESHOLDS = tuple(round(0.05 * number, 2) for number in range(2, 15))
_SENTENCES = 1_500
# The most sentences that a list may have, of 1,000 sentences about anything.
_MOST_OTHERS = 10


@dataclass(frozen=True)
class Pair:
    """A thing to forget, a sentence, and whether the sentence says the thing."""

    language: str
    thing: str
    sentence: str
    is_same: bool
    half: int
    alike: float

    @property
    def is_found_by_words(self) -> bool:
        return bool(Needle(self.thing).units(self.sentence))


@dataclass(frozen=True)
class Score:
    """Counts of one threshold over pairs."""

    hits: int
    false_hits: int
    missed: int

    @property
    def precision(self) -> float:
        listed = self.hits + self.false_hits
        return self.hits / listed if listed else 1.0

    @property
    def recall(self) -> float:
        same = self.hits + self.missed
        return self.hits / same if same else 1.0

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def read_pairs() -> list[Pair]:
    """Return all pairs with their likeness."""
    languages = tomllib.loads((DATA / "paraphrases.toml").read_text("utf-8"))
    return [
        Pair(
            language,
            thing,
            sentence,
            is_same=kind == "same",
            half=number * 2 // len(pairs),
            alike=likeness(thing, sentence),
        )
        for language, kinds in languages.items()
        for kind, pairs in kinds.items()
        for number, (thing, sentence) in enumerate(pairs)
    ]


def score(pairs: Iterable[Pair], threshold: float) -> Score:
    """Count hits and misses; a pair is listed by its words too."""
    hits = false_hits = missed = 0
    for pair in pairs:
        is_listed = pair.alike >= threshold or pair.is_found_by_words
        hits += is_listed and pair.is_same
        false_hits += is_listed and not pair.is_same
        missed += pair.is_same and not is_listed
    return Score(hits, false_hits, missed)


def best_threshold(pairs: Sequence[Pair], allowed: Iterable[float] = THRESHOLDS) -> float:
    """Return the allowed threshold with the best F1; of equal ones the greatest."""
    return max(allowed, key=lambda threshold: (score(pairs, threshold).f1, threshold))


def _line(name: str, counted: Score) -> str:
    return (
        f"{name:<34} precision {counted.precision:.2f}  recall {counted.recall:.2f}  "
        f"F1 {counted.f1:.2f}"
    )


def said_by_users() -> list[str]:
    """Return sentences that the users of longtalk said, about anything."""
    samples: list[dict[str, Any]] = json.loads(lzma.decompress(LONGTALK.read_bytes()))
    turns = (
        turn
        for sample in samples
        for session in sample["conversation"].values()
        if isinstance(session, list)
        for turn in session
    )
    said = (
        part for turn in turns if turn.get("role") == "user" for part in sentences(turn["text"])
    )
    return list(islice(said, _SENTENCES))


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    pairs = read_pairs()
    print(f"{len(pairs)} pairs, {sum(pair.is_same for pair in pairs)} of them the same\n")
    for threshold in THRESHOLDS:
        print(_line(f"all pairs, {threshold:.2f}", score(pairs, threshold)))
    said = said_by_users()
    things = [pair.thing for pair in pairs if pair.language == "English" and pair.is_same]
    alike = [likeness(thing, text) for thing in things for text in said]
    others_listed = {
        threshold: 1_000 * sum(value >= threshold for value in alike) / len(alike)
        for threshold in THRESHOLDS
    }
    print("\nof 1,000 sentences about anything, a list has")
    print(", ".join(f"{share:.1f} at {least:.2f}" for least, share in others_listed.items()))
    allowed = [least for least, share in others_listed.items() if share <= _MOST_OTHERS]
    print()
    for half in (0, 1):
        chosen_on = [pair for pair in pairs if pair.half == half]
        others = [pair for pair in pairs if pair.half != half]
        threshold = best_threshold(chosen_on, allowed)
        print(_line(f"chosen on half {half + 1}: {threshold:.2f}", score(chosen_on, threshold)))
        print(_line("  measured on the other half", score(others, threshold)))
    print()
    for language in dict.fromkeys(pair.language for pair in pairs):
        of_language = [pair for pair in pairs if pair.language == language]
        print(_line(f"{language}, as shipped ({LEAST_ALIKE})", score(of_language, LEAST_ALIKE)))


if __name__ == "__main__":
    main()
