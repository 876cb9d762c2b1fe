"""Checks of a database after a crash campaign.

Messages, runs, jobs and the search index are compared with each other. All but the search is read
without code of the server.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ricordo.search import index
from ricordo.search.index import MessageFilter, Query
from ricordo.search.reader import read_documents, read_postings
from ricordo.search.scoring import PART_SHIFT
from ricordo.search.write_buffer import unpack
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.store import Transaction
from tests.support.crash_servers import MOST_ATTEMPTS, Tables

_FOUND = 20
_LONG_AFTER = 2**63


@dataclass
class Said:
    """A message as its sender knows it: acknowledged, answered, or reported as interrupted."""

    agent: str
    token: str
    acknowledged: bool = False
    answered: bool = False
    interrupted: bool = False


@dataclass(frozen=True)
class NotedRun:
    """One run of a job, in nanoseconds of the machine's clock.

    `ended` is None if it was interrupted.
    """

    job: str
    key: str
    process: int
    started: int
    ended: int | None


async def audit(
    tables: Tables, said: list[Said], added: list[str], killed: dict[int, int], folder: Path
) -> list[str]:
    """Return all errors.

    `added` are the acknowledged jobs, `killed` has the times at which each process was killed.
    """
    faults = [
        *_files(tables),
        *_runs(tables),
        *_said(tables, said),
        *_turns(tables, said),
        *_conversations(tables),
    ]
    faults += [
        *_effects(tables, folder / "bells"),
        *_jobs(tables, added, _noted(folder / "notes"), killed),
    ]
    return [*faults, *_partitions(tables), *await _searches(tables, said, folder)]


def _files(tables: Tables) -> Iterator[str]:
    if isinstance(tables.address, Path):
        yield from (
            f"integrity: {row}" for row in tables.rows("PRAGMA integrity_check") if row != ("ok",)
        )
        yield from (f"foreign key: {row}" for row in tables.rows("PRAGMA foreign_key_check"))


def _runs(tables: Tables) -> Iterator[str]:
    sql = (
        "SELECT id, status FROM runs WHERE ended_at IS NULL OR status NOT IN ('completed', "
        "'failed')"
    )
    yield from (f"{id} is {status}" for id, status in tables.rows(sql))


def _said(tables: Tables, said: list[Said]) -> Iterator[str]:
    heard = [
        text.split()[0] for (text,) in tables.rows("SELECT text FROM messages WHERE role = 'user'")
    ]
    stored = Counter(heard)
    answers = Counter(
        tables.rows("SELECT agent_id, text FROM messages WHERE role = 'assistant' AND text <> ''")
    )
    for one in said:
        times, told = stored[one.token], answers[one.agent, f"Done {one.token}."]
        if times > 1 or (one.acknowledged and times != 1):
            yield (
                f"{one.token} was {'' if one.acknowledged else 'not '}acknowledged and is stored "
                f"{times} times"
            )
        if told > 1 or (one.answered and told != 1):
            yield (
                f"{one.token} was {'' if one.answered else 'not '}answered and its answer is "
                f"stored {told} times"
            )


def _turns(tables: Tables, said: list[Said]) -> Iterator[str]:
    """Check that each message has one run: completed with one answer, or interrupted with none.

    Its sender must have got the same.
    """
    rows = tables.rows(
        "SELECT m.text, r.id, r.status, r.error, r.step_count, (SELECT count(*) FROM steps s "
        "WHERE s.run_id = r.id), (SELECT count(*) FROM messages a WHERE a.run_id = r.id AND "
        "a.role = 'assistant' AND a.text LIKE 'Done %'), (SELECT count(*) FROM messages u WHERE "
        "u.run_id = r.id AND u.role = 'user') FROM messages m LEFT JOIN runs r ON r.id = m.run_id "
        "WHERE m.role = 'user'"
    )
    known = {row[0].split()[0]: row[1:] for row in rows}
    for one in said:
        if one.answered == one.interrupted:
            if one.answered:
                yield f"{one.token} was told both of an answer and of an interruption"
            # The sender stopped waiting.
            continue
        if one.token not in known:
            yield f"{one.token} is not stored, and its sender was told of an end"
            continue
        run, status, error, counted, steps, answers, heard = known[one.token]
        kind = orjson.loads(error)["type"] if error else None
        if (status, kind, answers) != (
            ("completed", None, 1) if one.answered else ("failed", "interrupted", 0)
        ):
            yield f"{one.token}: {run} is {status} ({error}) with {answers} answers"
        if counted != steps or heard != 1:
            yield f"{run} counts {counted} steps, has {steps}, and heard {heard} messages"


def _conversations(tables: Tables) -> Iterator[str]:
    """Check that the window is the whole history in order.

    Results follow their calls, and answers follow messages.
    """
    for id, window, count in tables.rows('SELECT id, "window", message_count FROM conversations'):
        rows = tables.rows(
            (
                "SELECT id, role, parts, text FROM messages WHERE conversation_id = ? ORDER BY "
                "created_at, seq"
            ),
            id,
        )
        if orjson.loads(window) != [row[0] for row in rows]:
            yield f"the window of {id} is not its history"
        if count != len(rows):
            yield f"{id} counts {count} messages and has {len(rows)}"
        calls: list[str] = []
        heard = ""
        for message, role, parts, text in rows:
            found = orjson.loads(parts)
            if role == "user":
                heard = text.split()[0]
            if role == "assistant" and text not in ("", f"Done {heard}."):
                yield f"{heard} is followed by {text!r}"
            if role == "tool":
                if sorted(part["call_id"] for part in found) != sorted(calls):
                    yield f"{message} does not answer the calls before it"
                calls = []
                continue
            yield from (f"{call} has no result" for call in calls)
            calls = [part["call_id"] for part in found if part["kind"] == "tool_call"]
        yield from (f"{call} has no result" for call in calls)


def _effects(tables: Tables, bells: Path) -> Iterator[str]:
    """Check that each successful call had its effect once, and that nothing else had an effect."""
    done: dict[str, Counter[str]] = {"notes": Counter(), "shared": Counter(), "archive": Counter()}
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    sql = "SELECT role, parts FROM messages WHERE role IN ('assistant', 'tool') ORDER BY seq"
    for role, parts in tables.rows(sql):
        for part in orjson.loads(parts):
            if part["kind"] == "tool_call":
                names[part["call_id"]] = (part["name"], orjson.loads(part["arguments"]))
            elif role == "tool" and part["status"] == "success":
                name, given = names[part["call_id"]]
                place = "archive" if name == "archival_memory_insert" else given.get("label")
                if place:
                    done[place][part["call_id"].removeprefix("call_")] += 1
    kept = {"archive": Counter(text for (text,) in tables.rows("SELECT text FROM passages"))}
    for label in ("notes", "shared"):
        values = tables.rows("SELECT value FROM blocks WHERE label = ?", label)
        kept[label] = Counter(line for (value,) in values for line in value.split("\n")[1:])
    for place, expected in done.items():
        if kept[place] != expected:
            lost, extra = expected - kept[place], kept[place] - expected
            yield f"{place}: lost {list(lost)[:5]}, not told {list(extra)[:5]}"
    rung = bells.read_text().split() if bells.exists() else []
    yield from (
        f"the bell rang for {mark}, and no message tells of it"
        for mark in rung
        if f"call_{mark}" not in names
    )
    ((counted,),) = tables.rows("SELECT count(*) FROM passages")
    ((summed,),) = tables.rows("SELECT coalesce(sum(passage_count), 0) FROM archives")
    if counted != summed:
        yield f"archives count {summed} passages and hold {counted}"


def _noted(notes: Path) -> list[NotedRun]:
    """Return every recorded run of a job, in the order of their starts."""
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    ends = {words[1]: int(words[4]) for words in lines if words[0] == "end"}
    runs = [
        NotedRun(
            words[1].partition("/")[0], words[2], int(words[3]), int(words[4]), ends.get(words[1])
        )
        for words in lines
        if words[0] == "start"
    ]
    return sorted(runs, key=lambda run: run.started)


def _jobs(
    tables: Tables, added: list[str], noted: list[NotedRun], killed: dict[int, int]
) -> Iterator[str]:
    """Check that no job is lost, runs for ever or runs too often.

    Jobs of one key never overlap, and no wake-up is left.
    """
    rows = tables.rows(
        "SELECT id, kind, status, attempts, most_attempts, error, is_single FROM jobs"
    )
    for id, kind, status, attempts, most, error, is_single in rows:
        if attempts > most:
            yield f"{kind} {id} ran {attempts} times and may {most}"
        # If a single job is taken over while an equal job waits, the waiting job does the work.
        is_odd = status == "running" or (status == "cancelled" and not is_single)
        if is_odd or (status == "failed" and orjson.loads(error)["type"] != "Interrupted"):
            yield f"{kind} {id} is {status} after {attempts} attempts: {error}"
    stored = {row[0]: row for row in rows if row[1] == "campaign.note"}
    yield from (f"the job {id} is lost" for id in added if id not in stored)
    starts, ends = Counter(run.job for run in noted), Counter(run.job for run in noted if run.ended)
    for id, (_, _, status, attempts, *_) in stored.items():
        if not starts[id] <= attempts <= MOST_ATTEMPTS:
            yield f"the job {id} counts {attempts} attempts and was started {starts[id]} times"
        if status == "done" and not ends[id]:
            yield f"the job {id} is done and never came to its end"
        if status == "waiting" or (status == "failed" and attempts != MOST_ATTEMPTS):
            yield f"the job {id} is {status} after {attempts} attempts"
    for key in {run.key for run in noted}:
        for one, other in pairwise(run for run in noted if run.key == key):
            if (one.ended or killed.get(one.process, _LONG_AFTER)) > other.started:
                yield f"two jobs of {key} overlapped: {one}, {other}"
    if not isinstance(tables.address, Path):
        left = tables.rows("SELECT status, count(*) FROM procrastinate_jobs GROUP BY status")
        yield from (f"{count} wake-ups are left {status}" for status, count in left)


def _numbers(records: Any) -> Iterator[int]:
    """Yield the number of each text once, and again for each repeated part."""
    parts = zip(records["number"].tolist(), (records["form"] >> PART_SHIFT).tolist(), strict=True)
    times: Counter[int] = Counter()
    for (number, _), count in Counter(parts).items():
        times[number] = max(times[number], count)
    yield from times.elements()


def _partitions(tables: Tables) -> Iterator[str]:
    """Check that each partition holds its owner's texts once, with its postings in order."""
    wanted: dict[str, set[int]] = {}
    sql = (
        "SELECT agent_id, seq FROM messages WHERE text <> '' UNION ALL SELECT archive_id, seq "
        "FROM passages"
    )
    for owner, number in tables.rows(sql):
        wanted.setdefault(owner, set()).add(number)
    held: dict[str, Counter[int]] = {owner: Counter() for owner in wanted}
    partitions = tables.rows("SELECT owner_id, seq, documents, deleted FROM search_partitions")
    for owner, partition, documents, deleted in partitions:
        rows = tables.rows(
            "SELECT data FROM search_documents WHERE partition = ? ORDER BY chunk", partition
        )
        records = read_documents(b"".join(data for (data,) in rows))
        held.setdefault(owner, Counter()).update(_numbers(records[records["alive"] == 1]))
        if len(records) != documents or int((records["alive"] == 0).sum()) != deleted:
            yield f"the partition of {owner} counts {documents} documents and has {len(records)}"
        yield from _postings(tables, owner, partition, documents)
    for owner, seq, number, data in tables.rows(
        "SELECT owner_id, seq, document, data FROM search_buffer"
    ):
        held.setdefault(owner, Counter()).update(
            [number] if not unpack(seq, number, data).is_deleted else []
        )
    for owner, numbers in held.items():
        if numbers != Counter(wanted.get(owner, set())):
            twice = [number for number, times in numbers.items() if times > 1]
            lost = wanted.get(owner, set()) - set(numbers)
            extra = set(numbers) - wanted.get(owner, set())
            yield (
                f"the index of {owner}: twice {twice[:5]}, lost {list(lost)[:5]}, deleted "
                f"{list(extra)[:5]}"
            )


def _postings(tables: Tables, owner: str, partition: int, documents: int) -> Iterator[str]:
    terms: dict[str, list[Any]] = {}
    for term, data in tables.rows(
        "SELECT term, data FROM search_postings WHERE partition = ? ORDER BY term, chunk", partition
    ):
        terms.setdefault(term, []).append(read_postings(data)["position"].astype(np.int64))
    for term, parts in terms.items():
        positions = np.concatenate(parts)
        if (np.diff(positions) <= 0).any() or positions[-1] >= documents:
            yield f"the postings of {term!r} in the partition of {owner} are out of order"


async def _searches(tables: Tables, said: list[Said], folder: Path) -> list[str]:
    """Check that the product's search finds every message of an agent by its token.

    The servers have ended.
    """
    numbers = {
        text.split()[0]: seq
        for text, seq in tables.rows("SELECT text, seq FROM messages WHERE role = 'user'")
    }
    if isinstance(tables.address, Path):
        store: Any = open_sqlite(tables.address)
    else:
        store = open_postgres(tables.address, connections=2, backups=folder)

    def find(tx: Transaction, one: Said) -> list[int]:
        wanted = MessageFilter((one.agent,), roles=("user",))
        return [
            hit.document for hit in index.find_messages(tx, Query(one.token), wanted, _FOUND).hits
        ]

    def missed(tx: Transaction) -> list[str]:
        return [
            one.token
            for one in said
            if one.token in numbers and numbers[one.token] not in find(tx, one)
        ]

    try:
        return [f"{token} cannot be found" for token in await store.read(missed)]
    finally:
        await store.close()
