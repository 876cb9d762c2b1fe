"""`python -m bench.matching`: fit the match of a hit, and count the effects.

All conversations of the development sets are stored as messages, and every question is searched by
words and vectors. A logistic curve is fitted for the first ten hits. From a hit's `word_match` and
`similarity` it computes the probability that the hit is evidence. Each set has the same weight. One
chat of each set is left out in turn. So the counts of a chat come from weights that were fitted
without that chat. The report says how many questions about something foreign to the chat match
nothing, and how many good hits are lost.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import numpy.typing as npt

from bench import locomo
from bench.locomo import ANSWERABLE, Conversation
from bench.retrieval import Place, development_sets
from bench.servers import model_server, ricordo
from bench.waiting import wait_for_index

# Questions about subjects that occur in no chat.
UNRELATED = (
    "What is the capital of Mongolia?",
    "How does a diesel engine ignite its fuel?",
    "Who won the world cup in 1954?",
    "What is the boiling point of mercury?",
    "Explain the rules of cricket.",
    "When was the Eiffel Tower built?",
    "How many moons does Saturn have?",
    "What does a notary charge in Belgium?",
    "Which enzyme breaks down lactose?",
    "Translate 'good night' into Finnish.",
    "What is the airspeed of a swallow?",
    "How do I reset a Cisco router?",
    "Who painted the Arnolfini portrait?",
    "What is a monad in category theory?",
    "How is penicillin produced?",
)
# Questions of another chat that are asked in each chat.
MOST_FOREIGN = 25
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4)
KINDS = ("answerable", "adversarial", "never said", "of another chat", "unrelated")
_ROUNDS = 30
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """The first hits of one question: their matches (k, 2), and whether each is evidence."""

    set_name: str
    chat: str
    kind: str
    signals: Array
    is_evidence: npt.NDArray[np.bool_]


def fit(asked: Sequence[Asked], columns: Sequence[int]) -> Array:
    """Return the intercept and weights of a logistic curve, by Newton's method."""
    sets = {one.set_name for one in asked}
    rows = []
    labels = []
    shares = []
    for name in sorted(sets):
        members = [one for one in asked if one.set_name == name and len(one.signals)]
        signals = np.concatenate([one.signals for one in members])[:, list(columns)]
        rows.append(np.column_stack([np.ones(len(signals)), signals.clip(0, 1)]))
        labels.append(np.concatenate([one.is_evidence for one in members]))
        shares.append(np.full(len(signals), 1 / len(signals)))
    features, label, share = (np.concatenate(parts) for parts in (rows, labels, shares))
    weights: Array = np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        chance = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (share * (label - chance)) - 1e-6 * weights
        curve = (features * (share * chance * (1 - chance))[:, None]).T @ features
        weights = weights + np.linalg.solve(curve + 1e-6 * np.eye(len(weights)), slope)
    return weights


def match(weights: Array, signals: Array) -> Array:
    """Return the match of each hit, 0 to 1, as `Relevance.match` computes it."""
    lowest, highest = (1 / (1 + np.exp(-edge)) for edge in (weights[0], weights.sum()))
    chance = 1 / (1 + np.exp(-(weights[0] + signals.clip(0, 1) @ weights[1:])))
    scaled: Array = (chance - lowest) / (highest - lowest)
    return scaled


def ask(client: httpx2.Client, path: Path) -> list[Asked]:
    """Ask all questions of one set, the questions of the next chat, and unrelated questions."""
    name = path.name.split(".")[0]
    chats = locomo.read(path)
    place = Place(client, "messages")
    for chat in chats:
        place.keep(chat)
    wait_for_index(client)
    asked = []
    for index, chat in enumerate(chats):
        other = chats[(index + 1) % len(chats)]
        for text, evidence, kind in _questions(chat, other):
            found = [(turn, hit["relevance"]) for turn, hit in place.hits(text, chat)]
            signals = [[known["word_match"], known["similarity"] or 0.0] for _, known in found]
            is_evidence = np.array([turn in evidence for turn, _ in found], dtype=np.bool_)
            matches = np.array(signals, dtype=np.float64).reshape(-1, 2)
            asked.append(Asked(name, chat.id, kind, matches, is_evidence))
    return asked


def _questions(chat: Conversation, other: Conversation) -> list[tuple[str, frozenset[str], str]]:
    """Return the questions to ask in a chat, each with its evidence there and its kind."""
    none = frozenset[str]()
    answerable = [question for question in chat.questions if question.category in ANSWERABLE]
    foreign = [question for question in other.questions if question.category in ANSWERABLE]
    adversarial = [question for question in chat.questions if question.category not in ANSWERABLE]
    return [
        *((question.text, question.evidence, "answerable") for question in answerable),
        *((question.text, none, "adversarial") for question in adversarial),
        *((text, none, "never said") for text in chat.unanswerable),
        *((question.text, none, "of another chat") for question in foreign[:MOST_FOREIGN]),
        *((text, none, "unrelated") for text in UNRELATED),
    ]


def main() -> None:
    """Ask, fit, count."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.matching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="*", type=Path, help="files of LoCoMo's format")
    paths = parser.parse_args().data
    paths = paths or development_sets()
    asked: list[Asked] = []
    with (
        model_server() as model_url,
        ricordo(model_url) as server,
        httpx2.Client(base_url=server.url, timeout=300, trust_env=False) as client,
    ):
        for path in paths:
            asked += ask(client, path)
    show(asked)


def show(asked: Sequence[Asked]) -> None:
    """Print the weights and the counts."""
    good = [one for one in asked if one.kind == "answerable"]
    for columns in ((0,), (0, 1)):
        print("weights", columns, np.round(fit(good, columns), 2))
    held = _held_out(asked, good)
    for name in sorted({one.set_name for one in asked}):
        members = [(one, matches) for one, matches in held if one.set_name == name]
        answered = [(one, matches) for one, matches in members if one.kind == "answerable"]
        scores = np.concatenate([matches for _, matches in answered])
        evidence = np.concatenate([one.is_evidence for one, _ in answered])
        for limit in (0, 0.1, 0.2, 0.3, 0.5):
            found = evidence[scores >= limit]
            kept = found.sum() / evidence.sum()
            print(f"{name}, score >= {limit}: evidence {found.mean():.2f}, kept {kept:.2f}")
        for threshold in THRESHOLDS:
            _show_threshold(name, [one for one, _ in members], threshold)


def _held_out(asked: Sequence[Asked], good: Sequence[Asked]) -> list[tuple[Asked, Array]]:
    """Return the matches of all hits, by weights fitted without the question's chat."""
    chats: dict[str, list[str]] = {}
    for one in asked:
        if one.chat not in chats.setdefault(one.set_name, []):
            chats[one.set_name].append(one.chat)
    held = []
    for number in range(max(map(len, chats.values()))):
        left_out = {(name, ids[number]) for name, ids in chats.items() if number < len(ids)}
        seen = [one for one in good if (one.set_name, one.chat) not in left_out]
        weights = fit(seen, (0, 1))
        held += [
            (one, match(weights, one.signals))
            for one in asked
            if (one.set_name, one.chat) in left_out
        ]
    return held


def _show_threshold(name: str, asked: Sequence[Asked], threshold: float) -> None:
    """Print how many questions of each kind match nothing at this threshold."""
    counts = []
    for kind in KINDS:
        some = [one for one in asked if one.kind == kind]
        nothing = [not (one.signals >= threshold).any() for one in some]
        if some:
            counts.append(f"{kind} {np.mean(nothing):.3f} of {len(some)}")
    answered = [one for one in asked if one.kind == "answerable"]
    hits = np.concatenate([one.signals[one.is_evidence] for one in answered])
    good = (hits >= threshold).any(axis=1).mean()
    print(f"{name}, nothing reaches {threshold}: {', '.join(counts)}; good hits kept {good:.3f}")


if __name__ == "__main__":
    main()
