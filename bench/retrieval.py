"""`python -m bench.retrieval`.

How much of a question's evidence a search brings back, on LoCoMo's conversations.

Each conversation goes through the HTTP API into a server on a fresh folder, once as an agent's
messages and once as an archive's passages. Then every question is asked as it stands. Plain
substring search, which this replaces, is computed beside it. The data is read from the path in
LOCOMO_JSON and never copied; where there is none, the bench says so and ends.
"""

import argparse
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from bench import locomo, report
from bench.locomo import ANSWERABLE, CATEGORIES, Conversation, Question
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.waiting import wait_for_index

DEFAULT_DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "locomo-dev.json"
LIMIT = 20
FIRST = (5, 10, 20)
# Share of the evidence among the first ten, categories 1 to 4.
REQUIRED_LEXICAL, REQUIRED_HYBRID = 0.75, 0.79
Search = Callable[[Conversation, Question], list[str]]


@dataclass(frozen=True)
class Answer:
    """The ids of turns that one search returned, and its milliseconds."""

    question: Question
    found: list[str]
    took: float


@dataclass(frozen=True)
class Score:
    """How one way of searching did.

    Recalls are over the answerable questions, those of `by_category` at ten.
    """

    way: str
    stored_as: str
    questions: int
    recalls: dict[int, float]
    ndcg: float
    by_category: dict[str, float]
    p50: float
    p95: float


class Place:
    """The storage of the conversations, as messages or passages, and its search."""

    def __init__(self, client: httpx2.Client, stored_as: str) -> None:
        self.stored_as = stored_as
        self.used_vectors = False
        self._client = client
        self._owners: dict[str, str] = {}
        self._turns: dict[str, str] = {}

    def keep(self, conversation: Conversation) -> None:
        """Store the conversation on the server, under an owner of its own."""
        store = self._keep_messages if self.stored_as == "messages" else self._keep_passages
        ids = store(conversation)
        self._turns |= dict(zip(ids, (turn.id for turn in conversation.turns), strict=True))

    def search(self, mode: str) -> Search:
        """Searching in this mode over HTTP, as ids of turns."""

        def ask(conversation: Conversation, question: Question) -> list[str]:
            owner = "agent_id" if self.stored_as == "messages" else "archive_id"
            body = {
                "query": question.text,
                "search_mode": mode,
                "limit": LIMIT,
                owner: self._owners[conversation.id],
            }
            hits = _post(self._client, f"/v1/{self.stored_as}/search", body)
            if self.stored_as == "messages":
                found = [(hit["message_id"], hit["relevance"]) for hit in hits]
            else:
                found = [(hit["passage"]["id"], hit["metadata"]) for hit in hits]
            self.used_vectors |= any(relevance["vector_rank"] is not None for _, relevance in found)
            return [self._turns[id] for id, _ in found]

        return ask

    def _keep_messages(self, conversation: Conversation) -> list[str]:
        agent = _post(
            self._client, "/v1/agents/", {"name": conversation.id, "model": "openai/bench"}
        )["id"]
        self._owners[conversation.id] = agent
        past = [
            {
                "role": "user" if turn.speaker == conversation.speakers[0] else "assistant",
                "name": turn.speaker,
                "content": turn.text,
                "created_at": turn.said_at.isoformat(),
                "otid": turn.id,
            }
            for turn in conversation.turns
        ]
        ids: list[str] = _post(
            self._client, f"/v1/agents/{agent}/messages/import", {"messages": past}
        )["message_ids"]
        return ids

    def _keep_passages(self, conversation: Conversation) -> list[str]:
        archive = _post(self._client, "/v1/archives/", {"name": conversation.id})["id"]
        self._owners[conversation.id] = archive
        ids: list[str] = []
        for session in conversation.sessions():
            day = session[0].said_at.isoformat()
            batch = [
                {"text": f"{turn.speaker}: {turn.text}", "created_at": day} for turn in session
            ]
            made = _post(
                self._client, f"/v1/archives/{archive}/passages/batch", {"passages": batch}
            )
            ids += [passage["id"] for passage in made]
        return ids


def containing(conversation: Conversation, piece: str) -> list[str]:
    """The turns whose text holds this piece, in any case of letters, newest first."""
    sought = piece.casefold()
    newest = reversed(conversation.turns)
    return [turn.id for turn in newest if sought in f"{turn.speaker}: {turn.text}".casefold()][
        :LIMIT
    ]


def whole_question(conversation: Conversation, question: Question) -> list[str]:
    """Plain substring search for the question as it stands."""
    return containing(conversation, question.text)


def best_word(conversation: Conversation, question: Question) -> list[str]:
    """Plain substring search for one word of the question.

    The best one, by the evidence, which no asker could do better.
    """
    words = dict.fromkeys(re.findall(r"\w+", question.text))
    answers = [containing(conversation, word) for word in words]
    return max(
        answers,
        key=lambda found: [locomo.recall(found, question.evidence, first) for first in (10, 20)],
    )


def ask_all(conversations: Iterable[Conversation], search: Search) -> list[Answer]:
    """Every question, one after the other."""
    answers = []
    for conversation in conversations:
        for question in conversation.questions:
            began = time.perf_counter()
            found = search(conversation, question)
            answers.append(Answer(question, found, (time.perf_counter() - began) * 1000))
    return answers


def score(way: str, stored_as: str, answers: Sequence[Answer]) -> Score:
    """The means over the questions that can be answered, and by category."""
    at_ten: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        name = CATEGORIES[answer.question.category]
        at_ten[name].append(locomo.recall(answer.found, answer.question.evidence, 10))
    counted = [answer for answer in answers if answer.question.category in ANSWERABLE]
    found = [(answer.found, answer.question.evidence) for answer in counted]
    times = sorted(answer.took for answer in answers)
    return Score(
        way,
        stored_as,
        len(counted),
        {
            first: _mean(locomo.recall(ids, evidence, first) for ids, evidence in found)
            for first in FIRST
        },
        _mean(locomo.ndcg(ids, evidence) for ids, evidence in found),
        {name: _mean(at_ten[name]) for name in CATEGORIES.values() if name in at_ten},
        statistics.median(times),
        times[int(len(times) * 0.95)],
    )


def measure(conversations: Sequence[Conversation], places: Sequence[str]) -> list[Score]:
    """Both ways of storing, each way of searching.

    Plain substring once, as it looks at the same texts.
    """
    scores = [
        score("substring, the whole question", "either", ask_all(conversations, whole_question)),
        score("substring, the best single word", "either", ask_all(conversations, best_word)),
    ]
    with model_server() as model_url, ricordo(model_url) as server:
        for stored_as in places:
            scores += _measure_place(server, stored_as, conversations)
    return scores


def _measure_place(
    server: Server, stored_as: str, conversations: Sequence[Conversation]
) -> list[Score]:
    with httpx2.Client(base_url=server.url, timeout=300, trust_env=False) as client:
        place = Place(client, stored_as)
        for conversation in conversations:
            place.keep(conversation)
        wait_for_index(client)
        ask_all(
            conversations[:1], place.search("hybrid")
        )  # the first searches load what is loaded on first use
        lexical = score("words alone", stored_as, ask_all(conversations, place.search("fts")))
        place.used_vectors = False
        answers = ask_all(conversations, place.search("hybrid"))
        way = (
            f"as shipped, {_model(client)}"
            if place.used_vectors
            else "as shipped, without an embedding model"
        )
        return [lexical, score(way, stored_as, answers)]


def show(scores: Sequence[Score]) -> None:
    """Print the table."""
    table = Table(title="Share of the evidence among the first results")
    for column in ("search", "stored as", *(f"R@{first}" for first in FIRST), "nDCG@10"):
        table.add_column(column, justify="left" if column in ("search", "stored as") else "right")
    for name in CATEGORIES.values():
        table.add_column(name, justify="right")
    table.add_column("p50, p95 ms", justify="right")
    for row in scores:
        recalls = [f"{row.recalls[first]:.3f}" for first in FIRST]
        categories = [
            f"{row.by_category[name]:.3f}" if name in row.by_category else ""
            for name in CATEGORIES.values()
        ]
        times = "" if row.stored_as == "either" else f"{row.p50:.1f}, {row.p95:.1f}"
        table.add_row(row.way, row.stored_as, *recalls, f"{row.ndcg:.3f}", *categories, times)
    Console(width=170).print(table)
    print(
        "R@k and nDCG@10 over the answerable questions (the first four categories), categories at "
        "ten."
    )


def figures(scores: Sequence[Score]) -> list[Figure]:
    """The recalls at ten beside what is required of them, and all else as yardsticks."""
    best = max(row.recalls[10] for row in scores if row.stored_as == "either")
    made = []
    for row in scores:
        required = None if row.stored_as == "either" else REQUIRED_LEXICAL
        if row.way.startswith("as shipped") and "without" not in row.way:
            required = REQUIRED_HYBRID
        name = f"recall@10, {row.stored_as}: {row.way}"
        made.append(Figure(name, row.recalls[10], "", required, more_is_better=True))
        if required and best:
            made.append(Figure("  against the best single word", row.recalls[10] / best, "times"))
    return made


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__)
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        help="a file of LoCoMo's format; by default the path in LOCOMO_JSON",
    )
    parser.add_argument("--only", choices=("messages", "passages"), help="store in one way only")
    options = parser.parse_args()
    path = options.data or Path(os.environ.get("LOCOMO_JSON") or DEFAULT_DATA)
    if not path.is_file():
        print(
            f"Skipped: there is no file {path}. Name one of LoCoMo's format in LOCOMO_JSON; it is "
            "not part of Ricordo."
        )
        return
    conversations = locomo.read(path)
    scores = measure(conversations, [options.only] if options.only else ["messages", "passages"])
    show(scores)
    report.show(figures(scores))
    kept = report.keep(figures(scores), retrieval=[asdict(row) for row in scores])
    print(
        f"{sum(len(c.questions) for c in conversations)} questions of {len(conversations)} "
        f"conversations. Kept in {kept}"
    )


def _model(client: httpx2.Client) -> str:
    answer = client.get("/v1/models/embedding")
    answer.raise_for_status()
    named = os.environ.get("RICORDO_EMBEDDING")
    return named or str(answer.json()[0]["handle"])


def _post(client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    main()
