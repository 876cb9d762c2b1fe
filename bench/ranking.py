"""`python -m bench.ranking`: fit the weights of `ricordo/search/fusion.py` on two kinds of talk.

The search's own code computes the parts of the score, without a database. The weights are fitted so
that a question's evidence gets most of the probability among all turns (softmax). Both sets have
the same weight. A weight that helps only one kind of talk is useless. So weights that were fitted
on one set alone are also measured on the other set. Vectors are cached in the temporary folder, so
an experiment takes seconds. The weights are scaled so that the weights of words and similarity add
up to 1.
"""

import argparse
import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench import locomo
from bench.locomo import ANSWERABLE, Conversation, Question
from bench.retrieval import development_sets
from ricordo.llm.embedding.embedded import EmbeddedModel
from ricordo.search import fusion, scoring
from ricordo.search.dates import named_times
from ricordo.search.fusion import Similarities
from ricordo.search.reader import POSTING as RECORD
from ricordo.search.reader import document_records, occurrences, posting_of
from ricordo.search.words import asks_for_summary, persons, query_terms
from ricordo.search.write_buffer import BufferRow, IndexEntry, pack, unpack

PARTS = ("words", "similarity", "speaker", "time", "own")
_CACHE = Path(tempfile.gettempdir()) / "ricordo-bench-vectors"
_STEPS = 200
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Example:
    """A question's parts of the score, one column each, and whether each turn is evidence."""

    parts: Array
    evidence: npt.NDArray[np.bool_]


async def vectors_of(model: EmbeddedModel, texts: Sequence[str]) -> Array:
    """Return the vectors of these texts, from the cache if it has them."""
    digest = hashlib.sha256("\0".join([model.handle, *texts]).encode()).hexdigest()
    file = _CACHE / f"{digest}.npy"
    if not file.is_file():
        _CACHE.mkdir(exist_ok=True)
        np.save(file, np.array(await model.embed(texts), dtype=np.float32))
    rows: Array = np.load(file)
    return rows


async def examples_of(model: EmbeddedModel, conversation: Conversation) -> list[Example]:
    """Return the examples of one conversation."""
    rows: list[BufferRow] = []
    for number, turn in enumerate(conversation.turns):
        entry = IndexEntry(
            turn.id,
            turn.text,
            round(turn.said_at.timestamp() * 1e6),
            conversation.id,
            role=turn.role,
            speaker=turn.speaker,
        )
        rows.append(unpack(number, number, pack(entry)))
    records = document_records(rows)
    documents = scoring.documents_of(records, np.ones(len(rows), dtype=np.bool_))
    counts = [occurrences(row) for row in rows]
    vectors = await vectors_of(
        model, [f"{turn.speaker}: {turn.text}" for turn in conversation.turns]
    )
    questions = [question for question in conversation.questions if question.category in ANSWERABLE]
    queries = await vectors_of(model, [question.text for question in questions])
    common = fusion.common_of(vectors)
    is_user = np.array([turn.role == "user" for turn in conversation.turns])
    examples = []
    for question, query in zip(questions, queries, strict=True):
        terms = query_terms(question.text)
        postings = []
        for term in terms:
            held = [(place, count[term]) for place, count in enumerate(counts) if term in count]
            postings.append(posting_of(np.array(held, dtype=RECORD)))
        lexical = scoring.lexical(documents, postings)
        similar = Similarities(np.arange(len(rows)), vectors @ fusion.focus(query, common))
        scaled = fusion.scaled(documents, similar, None)
        columns = [lexical / (lexical.max() or 1), scaled.values if scaled else 0 * lexical]
        columns += _bonuses(documents, question, fusion.speaks(documents, postings), is_user)
        parts = np.stack(columns, axis=1).astype(np.float32) * documents.worth[:, None]
        evidence = np.array([turn.id in question.evidence for turn in conversation.turns])
        examples.append(Example(parts, evidence))
    return examples


def _bonuses(
    documents: scoring.DocumentColumns,
    question: Question,
    spoken: scoring.Bools | None,
    is_user: scoring.Bools,
) -> list[npt.NDArray[np.bool_]]:
    none = np.zeros(len(documents), dtype=np.bool_)
    times = named_times(question.text, int(documents.created_at.max()))
    asker, asked = persons(question.text)
    is_own = asker and not asked and not asks_for_summary(question.text)
    return [
        none if spoken is None else spoken,
        fusion.within(documents.created_at, times) if times else none,
        is_user if is_own else none,
    ]


def fit(sets: Sequence[Sequence[Example]]) -> Array:
    """Return the weights that make the evidence most probable (Adam).

    Each set has the same weight.
    """
    weights = np.array([2.0, 1.0, 0, 0, 0])
    mean = np.zeros_like(weights)
    square = np.zeros_like(weights)
    for step in range(1, _STEPS + 1):
        gradient = 1e-3 * weights
        for examples in sets:
            for example in examples:
                scores = example.parts @ weights
                share = np.exp(scores - scores.max())
                wrong = share / share.sum() - example.evidence / example.evidence.sum()
                gradient = gradient + example.parts.T @ wrong / len(examples)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = 0.3 if step < _STEPS / 2 else 0.06
        weights = weights - rate * (mean / (1 - 0.9**step)) / (
            np.sqrt(square / (1 - 0.99**step)) + 1e-8
        )
    scaled: Array = weights / (weights[0] + weights[1])
    return scaled


def recall(examples: Sequence[Example], weights: npt.ArrayLike, first: int = 10) -> float:
    """Return the mean share of the evidence among the first turns."""
    shares = []
    for example in examples:
        best = np.argsort(-(example.parts @ np.asarray(weights)), kind="stable")[:first]
        shares.append(example.evidence[best].sum() / example.evidence.sum())
    return float(np.mean(shares))


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ranking", description=__doc__)
    parser.add_argument("data", nargs="*", type=Path, help="files of LoCoMo's format")
    paths = parser.parse_args().data
    paths = paths or development_sets()
    model = EmbeddedModel()
    sets = {
        path.name.split(".")[0]: [
            example
            for conversation in locomo.read(path)
            for example in await examples_of(model, conversation)
        ]
        for path in paths
        if path.is_file()
    }
    shipped = [
        1 - fusion.SIMILARITY_SHARE,
        fusion.SIMILARITY_SHARE,
        fusion.SPEAKER_BONUS,
        fusion.TIME_BONUS,
        fusion.OWN_BONUS,
    ]
    rows = {"words alone": [1.0, 0, 0, 0, 0], "similarity alone": [0, 1.0, 0, 0, 0]}
    rows["shipped"] = shipped
    rows["fitted on all"] = fit(list(sets.values())).tolist()
    if len(sets) > 1:
        rows |= {f"fitted on {name}": fit([examples]).tolist() for name, examples in sets.items()}
    for name, weights in rows.items():
        shown = ", ".join(f"{part} {w:.2f}" for part, w in zip(PARTS, weights, strict=True))
        recalls = ", ".join(f"{s} {recall(examples, weights):.3f}" for s, examples in sets.items())
        print(f"{name}: R@10 {recalls}\n    {shown}")


if __name__ == "__main__":
    asyncio.run(_main())
