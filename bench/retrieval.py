"""`python -m bench.retrieval`: how much of the evidence a search finds, on two kinds of talk.

The conversations of a file are stored over HTTP on a server with an empty folder. They are stored
once as messages of an agent and once as passages of an archive. Then every question is searched
unchanged: by words, by vectors, and by both. Plain BM25 and SQLite's FTS5 are computed for
comparison. The tables show the recall by way of searching, by kind of question, and by the speaker
of the evidence. Their 95 % intervals come from drawing the questions 2,000 times with replacement.

The data sets are `data/longtalk-dev.json.xz` in this folder (chats with long answers), and the
conversations of LoCoMo (short turns of two people). LoCoMo is not part of this repository:
LOCOMO_JSON names its file. Any other file of that format works too.

With `--facts`, rules read facts from the turns (see `bench/facts.py`), and more rows show the
hybrid search with facts. "facts first" puts the messages of the best facts before the hits; the
number of messages stays the same. "facts beside" adds the facts to the first ten hits, as an
agent's search does; a turn counts as found if one of its sentences is shown. "hits as long" adds
more hits instead, with the same length as these facts. A table shows the effect of facts by kind of
question.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from rich.console import Console
from rich.table import Table

from bench import locomo, report
from bench.baselines import LIMIT, Fts5, PlainBm25
from bench.facts import SHOWN, facts_of
from bench.locomo import ANSWERABLE, Conversation, Question
from bench.report import Figure
from bench.servers import Server, model_server, ricordo
from bench.waiting import wait_for_index

LONGTALK = Path(__file__).parent / "data" / "longtalk-dev.json.xz"
DEFAULT_LOCOMO = Path(__file__).parent.parent.parent / "shared" / "data" / "locomo-dev.json"
FIRST = (5, 10, 20)
MODES = {"words": "fts", "vectors": "vector", "hybrid": "hybrid"}
# The required recall of the hybrid search at ten results: of LoCoMo's evidence, and relative to
# plain BM25 in chats.
REQUIRED_LOCOMO = 0.825
REQUIRED_TIMES_BM25 = 1.15
_DRAWS = 2_000
Search = Callable[[Conversation, Question], list[str]]


@dataclass(frozen=True)
class Answer:
    """The ids of turns that one search returned, and its milliseconds."""

    conversation: Conversation
    question: Question
    found: list[str]
    took: float


@dataclass(frozen=True)
class Score:
    """The scores of one way of searching.

    Recalls are over the answerable questions; those by kind of question and by the role that said
    the evidence are at ten.
    """

    way: str
    stored_as: str
    questions: int
    recalls: dict[int, float]
    interval: tuple[float, float]
    ndcg: float
    by_kind: dict[str, float]
    by_role: dict[str, float]
    p50: float
    p95: float
    each: list[float] = field(default_factory=list, repr=False)


class Place:
    """The conversations on a server, as messages or as passages, and their search."""

    def __init__(self, client: httpx2.Client, stored_as: str) -> None:
        self.stored_as = stored_as
        self._client = client
        self._owners: dict[str, str] = {}
        self._turns: dict[str, str] = {}

    def keep(self, conversation: Conversation) -> None:
        """Store the conversation on the server, under a separate owner."""
        store = self._keep_messages if self.stored_as == "messages" else self._keep_passages
        ids = store(conversation)
        self._turns |= dict(zip(ids, (turn.id for turn in conversation.turns), strict=True))

    def search(self, mode: str) -> Search:
        """Search in this mode over HTTP; return ids of turns."""

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
                found = [hit["message_id"] for hit in hits]
            else:
                found = [hit["passage"]["id"] for hit in hits]
            return [self._turns[id] for id in found]

        return ask

    def hits(self, text: str, conversation: Conversation) -> list[tuple[str, dict[str, Any]]]:
        """Return the first ten messages by words and vectors, with the ids of their turns."""
        body = {"query": text, "limit": 10, "agent_id": self._owners[conversation.id]}
        hits = _post(self._client, "/v1/messages/search", body)
        return [(self._turns[hit["message_id"]], hit) for hit in hits]

    def _keep_messages(self, conversation: Conversation) -> list[str]:
        agent = _post(
            self._client, "/v1/agents/", {"name": conversation.id, "model": "openai/bench"}
        )["id"]
        self._owners[conversation.id] = agent
        past = [
            {
                "role": turn.role,
                "name": turn.speaker,
                "content": turn.text,
                "created_at": turn.said_at.isoformat(),
                "otid": turn.id,
            }
            for turn in conversation.turns
        ]
        ids: list[str] = []
        for start in range(0, len(past), 200):
            body = {"messages": past[start : start + 200]}
            ids += _post(self._client, f"/v1/agents/{agent}/messages/import", body)["message_ids"]
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


def ask_all(conversations: Iterable[Conversation], search: Search) -> list[Answer]:
    """Ask every question, one after the other."""
    answers = []
    for conversation in conversations:
        for question in conversation.questions:
            began = time.perf_counter()
            found = search(conversation, question)
            took = (time.perf_counter() - began) * 1000
            answers.append(Answer(conversation, question, found, took))
    return answers


def score(way: str, stored_as: str, answers: Sequence[Answer], *, among: int | None = 10) -> Score:
    """Return the means over the questions that can be answered.

    Evidence counts if it is among the first `among` results; None means all results.
    """
    most = among or max((len(answer.found) for answer in answers), default=0)
    by_kind: dict[str, list[float]] = defaultdict(list)
    by_role: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        evidence = answer.question.evidence
        by_kind[answer.question.kind].append(locomo.recall(answer.found, evidence, most))
        for role in ("user", "assistant"):
            said = evidence & answer.conversation.said_by(role)
            if said:
                by_role[role].append(locomo.recall(answer.found, said, most))
    counted = [answer for answer in answers if answer.question.category in ANSWERABLE]
    found = [(answer.found, answer.question.evidence) for answer in counted]
    each = [locomo.recall(ids, evidence, most) for ids, evidence in found]
    times = sorted(answer.took for answer in answers)
    return Score(
        way,
        stored_as,
        len(counted),
        {
            first: _mean(
                locomo.recall(ids, evidence, most if first == 10 else first)
                for ids, evidence in found
            )
            for first in FIRST
        },
        interval(each),
        _mean(locomo.ndcg(ids, evidence) for ids, evidence in found),
        {kind: _mean(recalls) for kind, recalls in by_kind.items()},
        {role: _mean(recalls) for role, recalls in by_role.items()},
        statistics.median(times),
        times[int(len(times) * 0.95)],
        each,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean, computed by drawing the values again."""
    draws = np.random.default_rng(7).integers(0, len(values), (_DRAWS, len(values)))
    low, high = np.percentile(np.asarray(values)[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def measure(
    server: Server,
    conversations: Sequence[Conversation],
    places: Sequence[str],
    *,
    facts: bool = False,
) -> list[Score]:
    """Score the baselines, then each way of searching for both ways of storing.

    With `facts`, also score the hybrid search with facts.
    """
    scores = []
    for baseline in (PlainBm25, Fts5):
        indexes = {conversation.id: baseline(conversation) for conversation in conversations}

        def search(conversation: Conversation, question: Question, indexes=indexes) -> list[str]:  # type: ignore[no-untyped-def]
            return indexes[conversation.id].search(question)  # type: ignore[no-any-return]

        scores.append(score(baseline.name, "", ask_all(conversations, search)))
    with httpx2.Client(base_url=server.url, timeout=300, trust_env=False) as client:
        for stored_as in places:
            place = Place(client, stored_as)
            for conversation in conversations:
                place.keep(conversation)
            wait_for_index(client)
            # The first searches load data that later ones use.
            ask_all(conversations[:1], place.search("hybrid"))
            for way, mode in MODES.items():
                answers = ask_all(conversations, place.search(mode))
                scores.append(score(way, stored_as, answers))
                if facts and way == "hybrid" and stored_as == "messages":
                    scores += with_facts(conversations, answers)
    return scores


def with_facts(conversations: Sequence[Conversation], answers: Sequence[Answer]) -> list[Score]:
    """Score the hybrid search with facts, and with more hits of the same length instead."""
    facts = facts_of(conversations)
    rows: dict[str, list[Answer]] = {"facts first": [], "facts beside": [], "hits as long": []}
    for answer in answers:
        known = facts[answer.conversation.id]
        instead = known.instead(answer.question, answer.found)
        beside = known.beside(answer.question, answer.found)
        longer = known.hits_as_long(answer.conversation, answer.question, answer.found)
        rows["facts first"].append(replace(answer, found=instead))
        rows["facts beside"].append(replace(answer, found=beside))
        rows["hits as long"].append(replace(answer, found=longer))
    plain = [replace(answer, found=answer.found[:SHOWN]) for answer in answers]
    for way in ("facts beside", "hits as long"):
        show_gains(way, plain, rows[way])
    return [
        score(way, "messages", answers, among=10 if way == "facts first" else None)
        for way, answers in rows.items()
    ]


def show_gains(way: str, plain: Sequence[Answer], changed: Sequence[Answer]) -> None:
    """Print the gain in shown evidence by kind of question, with 95 % intervals."""
    gains: dict[str, list[float]] = defaultdict(list)
    for before, after in zip(plain, changed, strict=True):
        evidence = before.question.evidence
        gain = len(evidence & set(after.found)) - len(evidence & set(before.found))
        gains[before.question.kind].append(gain / len(evidence))
    shown = statistics.fmean(len(answer.found) for answer in changed)
    table = Table(title=f"{way}: points more than ten hits, {shown:.1f} messages of the set shown")
    for column in ("kind", "questions", "points", "95 %"):
        table.add_column(column)
    for kind, each in gains.items():
        low, high = interval(each)
        points = f"{100 * _mean(each):+.1f}"
        table.add_row(kind, str(len(each)), points, f"{100 * low:+.1f} to {100 * high:+.1f}")
    Console(width=110).print(table)


def show(name: str, scores: Sequence[Score]) -> None:
    """Print the tables of one data set."""
    table = Table(title=f"{name}: share of the evidence among the first results")
    for column in ("search", "stored as", *(f"R@{first}" for first in FIRST)):
        table.add_column(column)
    for column in ("95 % of R@10", "nDCG@10", "user's", "assistant's", "p50, p95 ms"):
        table.add_column(column)
    for row in scores:
        table.add_row(
            row.way,
            row.stored_as,
            *(f"{row.recalls[first]:.3f}" for first in FIRST),
            f"{row.interval[0]:.3f} to {row.interval[1]:.3f}",
            f"{row.ndcg:.3f}",
            *(f"{row.by_role.get(role, 0):.3f}" for role in ("user", "assistant")),
            f"{row.p50:.1f}, {row.p95:.1f}",
        )
    kinds = list(scores[0].by_kind)
    by_kind = Table(title=f"{name}: R@10 by kind of question")
    by_kind.add_column("kind")
    for row in scores:
        by_kind.add_column(f"{row.way} {row.stored_as}".strip())
    for kind in kinds:
        by_kind.add_row(kind, *(f"{row.by_kind[kind]:.3f}" for row in scores))
    console = Console(width=170)
    console.print(table)
    console.print(by_kind)


def figures(name: str, scores: Sequence[Score]) -> list[Figure]:
    """Return the recalls at ten with their requirements, the others for comparison."""
    plain = scores[0].recalls[10]
    rows = []
    for row in scores:
        required = plain if row.stored_as else None
        if row.way == "hybrid" and "locomo" in name:
            required = REQUIRED_LOCOMO
        elif row.way == "hybrid":
            required = REQUIRED_TIMES_BM25 * plain
        label = f"recall@10, {name}: {row.way} {row.stored_as}".strip()
        rows.append(Figure(label, row.recalls[10], "", required, more_is_better=True))
    return rows


def development_sets() -> list[Path]:
    """Return the files of both development sets; print a notice if LoCoMo's is missing."""
    locomo_file = Path(os.environ.get("LOCOMO_JSON") or DEFAULT_LOCOMO)
    if locomo_file.is_file():
        return [LONGTALK, locomo_file]
    print(f"LoCoMo is skipped: there is no file {locomo_file}. Name one in LOCOMO_JSON.")
    return [LONGTALK]


def main() -> None:
    """Measure, print and store the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.retrieval",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="*", type=Path, help="files of LoCoMo's format")
    parser.add_argument("--only", choices=("messages", "passages"), help="store in one way only")
    parser.add_argument("--facts", action="store_true", help="also search with facts of rules")
    options = parser.parse_args()
    all_figures: list[Figure] = []
    all_scores: dict[str, list[dict[str, Any]]] = {}
    for path in options.data or development_sets():
        conversations = locomo.read(path)
        name = path.name.split(".")[0]
        with model_server() as model_url, ricordo(model_url) as server:
            places = [options.only] if options.only else ["messages", "passages"]
            scores = measure(server, conversations, places, facts=options.facts)
        show(name, scores)
        all_figures += figures(name, scores)
        all_scores[name] = [asdict(row) for row in scores]
    report.show(all_figures)
    print(f"Kept in {report.keep(all_figures, retrieval=all_scores)}")


def _post(client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    if answer.is_error:
        raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:500]}")
    return answer.json()


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    main()
