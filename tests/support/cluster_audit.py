"""What a shared database must hold after a campaign of several servers: runs, jobs and the search index, each against the other."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ricordo.search import index
from ricordo.search.index import MessageFilter, Query
from ricordo.search.records import read_documents, read_postings
from ricordo.search.write_buffer import unpack
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.store import Transaction
from tests.support.cluster_server import MOST_ATTEMPTS, Tables
from tests.support.crash_audit import Said, audit_tables
from tests.support.job_worker import Run, read_runs

_INTERRUPTED = "interrupted"
_FOUND = 20


async def audit(
    tables: Tables, said: list[Said], told_interrupted: set[str], added: list[str], killed: dict[int, int], folder: Path
) -> list[str]:
    """Everything that is wrong. `told_interrupted` are the otids whose senders heard so, `added` the jobs acknowledged."""
    return [
        *audit_tables(tables, said, folder / "bells"),
        *_turns(tables, said, told_interrupted),
        *_jobs(tables, added, read_runs(folder / "notes"), killed),
        *_partitions(tables),
        *await _searches(tables, said, folder),
    ]


def _turns(tables: Tables, said: list[Said], told_interrupted: set[str]) -> list[str]:
    """Each otid has one run, which completed with one answer, or failed as interrupted with none; its sender heard the same."""
    faults = []
    rows = tables.execute(
        "SELECT m.otid, r.id, r.status, r.error, r.step_count, (SELECT count(*) FROM steps s WHERE s.run_id = r.id),"
        " (SELECT count(*) FROM messages a WHERE a.run_id = r.id AND a.role = 'assistant' AND a.text LIKE 'Done %'),"
        " (SELECT count(*) FROM messages u WHERE u.run_id = r.id AND u.role = 'user')"
        " FROM messages m LEFT JOIN runs r ON r.id = m.run_id WHERE m.otid IS NOT NULL"
    ).fetchall()
    known = {row[0]: row[1:] for row in rows}
    runs = Counter(row[1] for row in rows)
    faults += [f"{run} has {times} messages with an otid" for run, times in runs.items() if times > 1]
    for one in said:
        if one.otid not in known:
            faults.append(f"{one.token} is not stored, and its sender was told of an end")
            continue
        run, status, error, counted, steps, answers, heard = known[one.otid]
        kind = orjson.loads(error)["type"] if error else None
        expected = ("completed", None, 1) if one.answered else ("failed", _INTERRUPTED, 0)
        if (status, kind, answers) != expected:
            faults.append(f"{one.token}: {run} is {status} ({error}) with {answers} answers")
        if one.answered == (one.otid in told_interrupted):
            faults.append(f"{one.token} was told both of an answer and of an interruption, or of neither")
        if counted != steps or heard != 1:
            faults.append(f"{run} counts {counted} steps, has {steps}, and heard {heard} messages")
    return faults


def _jobs(tables: Tables, added: list[str], noted: list[Run], killed: dict[int, int]) -> list[str]:
    """No job is lost, runs for ever or too often; those of a key never overlap; no wake-up is left."""
    faults = []
    rows = tables.execute("SELECT id, kind, status, attempts, most_attempts, error, is_single FROM jobs").fetchall()
    for id, kind, status, attempts, most, error, is_single in rows:
        if attempts > most:
            faults.append(f"{kind} {id} ran {attempts} times and may {most}")
        # A single job that is taken over while another like it waits leaves the work to that one.
        is_odd = status == "running" or (status == "cancelled" and not is_single)
        if is_odd or (status == "failed" and orjson.loads(error)["type"] != "Interrupted"):
            faults.append(f"{kind} {id} is {status} after {attempts} attempts: {error}")
    stored = {row[0]: row for row in rows if row[1] == "campaign.note"}
    faults += [f"the job {id} is lost" for id in added if id not in stored]
    starts, ends = Counter(run.job for run in noted), Counter(run.job for run in noted if run.ended)
    for id, (_, _, status, attempts, *_) in stored.items():
        if not starts[id] <= attempts <= MOST_ATTEMPTS:
            faults.append(f"the job {id} counts {attempts} attempts and was started {starts[id]} times")
        if status == "done" and not ends[id]:
            faults.append(f"the job {id} is done and never came to its end")
        if status == "waiting" or (status == "failed" and attempts != MOST_ATTEMPTS):
            faults.append(f"the job {id} is {status} after {attempts} attempts")
    by_key: dict[str, list[Run]] = {}
    for run in sorted(noted, key=lambda run: run.started):
        by_key.setdefault(run.key, []).append(run)
    for of_key in by_key.values():
        for one, other in pairwise(of_key):
            if (one.ended or killed.get(one.process, 2**63)) > other.started:
                faults.append(f"two jobs of {one.key} overlapped: {one}, {other}")
    left = tables.execute("SELECT status, count(*) FROM procrastinate_jobs GROUP BY status").fetchall()
    return faults + [f"{count} wake-ups are left {status}" for status, count in left]


def _partitions(tables: Tables) -> list[str]:
    """Each partition holds each of its owner's texts once, in its documents or its buffer, and its postings are in order."""
    faults = []
    wanted: dict[str, set[int]] = {}
    for owner, number in tables.execute(
        "SELECT agent_id, seq FROM messages WHERE text <> '' UNION ALL SELECT archive_id, seq FROM passages"
    ):
        wanted.setdefault(owner, set()).add(number)
    held: dict[str, Counter[int]] = {owner: Counter() for owner in wanted}
    partitions = tables.execute("SELECT owner_id, seq, documents, deleted FROM search_partitions").fetchall()
    for owner, partition, documents, deleted in partitions:
        rows = tables.execute("SELECT data FROM search_documents WHERE partition = ? ORDER BY chunk", (partition,))
        records = read_documents(b"".join(data for (data,) in rows))
        held.setdefault(owner, Counter()).update(records["number"][records["alive"] == 1].tolist())
        if len(records) != documents or int((records["alive"] == 0).sum()) != deleted:
            faults.append(f"the partition of {owner} counts {documents} documents and has {len(records)}")
        faults += _postings(tables, owner, partition, documents)
    for owner, seq, number, data in tables.execute("SELECT owner_id, seq, document, data FROM search_buffer"):
        held.setdefault(owner, Counter()).update([number] if not unpack(seq, number, data).is_deleted else [])
    for owner, numbers in held.items():
        if numbers != Counter(wanted.get(owner, set())):
            twice = [number for number, times in numbers.items() if times > 1]
            lost = wanted.get(owner, set()) - set(numbers)
            extra = set(numbers) - wanted.get(owner, set())
            faults.append(f"the index of {owner}: twice {twice[:5]}, lost {list(lost)[:5]}, deleted {list(extra)[:5]}")
    return faults


def _postings(tables: Tables, owner: str, partition: int, documents: int) -> list[str]:
    terms: dict[str, list[Any]] = {}
    for term, data in tables.execute(
        "SELECT term, data FROM search_postings WHERE partition = ? ORDER BY term, chunk", (partition,)
    ):
        terms.setdefault(term, []).append(read_postings(data)["position"].astype(np.int64))
    faults = []
    for term, parts in terms.items():
        positions = np.concatenate(parts)
        if (np.diff(positions) <= 0).any() or positions[-1] >= documents:
            faults.append(f"the postings of {term!r} in the partition of {owner} are out of order")
    return faults


async def _searches(tables: Tables, said: list[Said], folder: Path) -> list[str]:
    """Every message is found by its token, among its agent's, by the product's own search."""
    numbers = dict(tables.execute("SELECT otid, seq FROM messages WHERE otid IS NOT NULL").fetchall())
    store = open_postgres(tables.address, connections=2, backups=folder)

    def missed(tx: Transaction) -> list[str]:
        return [one.token for one in said if one.otid in numbers and numbers[one.otid] not in _find(tx, one)]

    try:
        faults = await store.read(missed)
    finally:
        await store.close()
    return [f"{token} cannot be found" for token in faults]


def _find(tx: Transaction, one: Said) -> list[int]:
    wanted = MessageFilter((one.agent,), roles=("user",))
    return [hit.document for hit in index.find_messages(tx, Query(one.token), wanted, _FOUND).hits]
