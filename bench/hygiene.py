"""Faults left in memory after thirty days of talk: junk, duplicates and so on, by user.

`python -m bench.hygiene` simulates scripted people. Their agents use the librarian as the model,
and facts are extracted by rules. `--model HANDLE` uses a real model for both. The clock is
simulated, so a day takes as long as its turns. The exit code is 1 if the share of a fault reaches
5 %.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ricordo.agents.lifecycle import BlockSpec
from ricordo.domain.clock import to_datetime
from ricordo.domain.job import Job
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.features import FEATURES
from ricordo.features.knowledge.facts import jobs as fact_jobs
from ricordo.features.knowledge.facts.audit import audit_facts
from ricordo.features.librarian.model import LIBRARIAN_MODEL
from ricordo.features.memory_care.audit.hygiene import FAULTS, Tally
from ricordo.features.memory_care.audit.service import Audit, audit
from ricordo.llm.registry.models import Models
from ricordo.plugins import load_plugins
from ricordo.settings import load_settings
from ricordo.storage import jobs, users
from ricordo.storage.engine import sqlite
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from tests.seams.stage import Hooks, Stage
from tests.seams.stores import ManualClock

DAYS = 30
GATE = 0.05
DAY_SECONDS = 86_400
# By subject: the sentences (for the first value, then for later values) and the values that fill
# them.
_FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "home": (("I live in {}.", "I moved to {} last week."), ("Graz", "Vienna", "Turin")),
    "job": (("I work as a {}.", "I work as a {} now."), ("nurse", "teacher")),
    "tea": (
        ("My favourite tea is {}.", "My favourite tea is now {}."),
        ("jasmine", "mint", "rooibos"),
    ),
    "colour": (("My favourite colour is {}.", "My favourite colour is now {}."), ("blue", "green")),
    "name": (("My name is {}.",), ("Lena", "Omar", "Chiara", "Jonas")),
    "allergy": (("I'm allergic to {}.",), ("hazelnuts", "milk", "pollen")),
    "sister": (("My sister's name is {}.",), ("Mia", "Emma", "Zoë")),
    "dog": (("My dog is called {}.",), ("Bruno", "Luna", "Max")),
    "instrument": (("I play the {}.",), ("violin", "piano", "trumpet")),
    "language": (("Ich lerne {}.",), ("Italienisch", "Spanisch")),
    "sport": (("J'aime le {}.",), ("tennis", "football")),
    "birthday": (("My birthday is on {}.",), ("9 May", "3 October", "12 June")),
    "studies": (("I study {}.",), ("physics", "law", "medicine")),
    "diet": (("I'm a vegetarian.",), ("",)),
    "hobby": (("I collect {}.",), ("stamps", "old maps")),
    "brother": (("My brother lives in {}.",), ("Lyon", "Porto")),
}
_PLAN = "My exam is on {} 2026."
_TALK = (
    "Hello!",
    "Thanks, that helps a lot!",
    "How are you today?",
    "Can you write a poem about the sea?",
    "What is the derivative of x squared?",
    "If I lived in Rome, I would go out more.",
    "Explain the chain rule, please.",
    "Good night!",
    "Haha, great.",
    "Where do I live?",
    "What is my favourite tea?",
    "Was weißt du über mich?",
)


@dataclass
class Person:
    """A scripted person, with the facts that they have told and the facts that they will tell."""

    name: str
    chance: random.Random
    told: dict[str, int] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def says(self, day: int, days: int, date: str) -> Iterator[str]:
        """Yield the messages of a day: news, changes, repetitions, and small talk."""
        for subject in self._due(day, days):
            yield self._tells(subject)
        if self.told and self.chance.random() < 0.4:
            subject = self.chance.choice(sorted(self.told))
            yield f"As I said: {self._again(subject)}"
        if self.chance.random() < 0.25 and (changing := self._changing()):
            yield self._tells(self.chance.choice(changing))
        if day == 3:
            yield _PLAN.format(date)
        yield from self.chance.sample(_TALK, 2)

    def _due(self, day: int, days: int) -> Sequence[str]:
        subjects = sorted(_FACTS)
        self.chance.shuffle(subjects)
        rest = [subject for subject in subjects if subject not in self.told]
        wanted = len(_FACTS) * (day + 1) // max(1, days // 2) - len(self.told)
        return rest[: max(0, wanted)]

    def _changing(self) -> list[str]:
        return [
            subject
            for subject, place in sorted(self.told.items())
            if len(_FACTS[subject][0]) > 1 and place + 1 < len(self._values(subject))
        ]

    def _values(self, subject: str) -> tuple[str, ...]:
        if subject not in self.values:
            values = list(_FACTS[subject][1])
            self.chance.shuffle(values)
            self.values[subject] = tuple(values)
        return self.values[subject]

    def _tells(self, subject: str) -> str:
        forms = _FACTS[subject][0]
        place = self.told[subject] + 1 if subject in self.told else 0
        self.told[subject] = place
        return forms[min(place, len(forms) - 1)].format(self._values(subject)[place])

    def _again(self, subject: str) -> str:
        return _FACTS[subject][0][0].format(self._values(subject)[self.told[subject]])


async def replay(stage: Stage, clock: ManualClock, model: str, people: int, days: int) -> Audit:
    """Let the people talk for these days, read the facts of each day, and audit what is left."""
    cast = [Person(name, random.Random(name)) for name in ("ada", "ben", "cleo", "dan")[:people]]
    agents = {}
    for person in cast:
        user = await stage.store.write(
            lambda tx, name=person.name: users.find_or_make(tx, Scope(), name)
        )
        agents[person.name] = (user, await _agent(stage, model, user))
    for day in range(days):
        for person in cast:
            user, agent = agents[person.name]
            scope = Scope(subject_id=user.id, user_id=user.id)
            ahead = to_datetime(clock.now() + 10 * DAY_SECONDS * 1_000_000)
            for text in person.says(day, days, f"{ahead.day} {ahead:%B}"):
                await stage.say(agent, text, scope=scope)
                clock.advance(300)
            await _read_facts(stage, user, agent)
        clock.advance(DAY_SECONDS - 3_000)
    return await stage.store.read(lambda tx: audit(tx, Scope(), sources=[audit_facts]))


async def _agent(stage: Stage, model: str, user: User) -> str:
    return await stage.agent(
        model=model, blocks=(BlockSpec("human", ""),), user=user.id, name=f"Of {user.name}"
    )


async def _read_facts(stage: Stage, user: User, agent: str) -> None:
    def claim(tx: Transaction) -> Job:
        payload = {"user_id": user.id, "agent_id": agent}
        job = jobs.add(tx, Job(fact_jobs.EXTRACT, LOCAL_ORGANIZATION, payload))
        claimed = jobs.claim_one(tx, "bench", job.id) if job else None
        if claimed is None:
            raise RuntimeError("The job that reads facts was not added.")
        return claimed

    job = await stage.store.write(claim)
    await fact_jobs.extract(stage.runtime, job, lambda _done, _total: None)
    await stage.store.write(lambda tx: jobs.finish(tx, job))


def table(tallies: Sequence[Tally]) -> str:
    """Return the counts by user and source as Markdown."""
    names = list(dict.fromkeys(FAULTS.values()))
    lines = [f"| user | items | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for tally in tallies:
        counts = [getattr(tally, name) for name in names]
        shares = [f"{count} ({count / max(1, tally.items):.1%})" for count in counts]
        lines.append(f"| {tally.name}, {tally.source}s | {tally.items} | {' | '.join(shares)} |")
    return "\n".join(lines)


def worst(tallies: Sequence[Tally]) -> dict[tuple[str, str], float]:
    """Return the share of each fault over all users, by source."""
    shares = {}
    for source in ("block", "fact"):
        some = [tally for tally in tallies if tally.source == source]
        items = max(1, sum(tally.items for tally in some))
        for name in dict.fromkeys(FAULTS.values()):
            shares[source, name] = sum(getattr(tally, name) for tally in some) / items
    return shares


async def _main(model: str, people: int, days: int) -> int:
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ricordo.db"
        open_sqlite(path)._close()
        store = SqliteStore(sqlite.make_engine(path, "normal"), clock, sqlite.lock_file(path))
        with store.engine.begin() as connection:
            metadata.create_all(connection, tables=load_plugins(FEATURES).tables())
        stage = await Stage(store, Path(folder), Hooks()).open()
        if model != LIBRARIAN:
            settings, providers = load_settings()
            stage.runtime.models = Models(settings, providers)
        stage.runtime.models.add(LIBRARIAN_MODEL)
        try:
            outcome = await replay(stage, clock, model, people, days)
        finally:
            await stage.close()
            await store.close()
    print(table(outcome.tallies))
    shares = worst(outcome.tallies)
    for (source, name), share in shares.items():
        print(f"{source}s, {name}: {share:.1%}")
    for finding in outcome.findings:
        print(finding.kind, finding.source, finding.text, f"({finding.reason})")
    return int(any(share >= GATE for share in shares.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=LIBRARIAN, help="handle of the agents' model")
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--days", type=int, default=DAYS)
    given = parser.parse_args()
    os.environ |= {"RICORDO_FACTS": "direct", "RICORDO_FACTS_IDLE_SECONDS": "0"}
    os.environ["RICORDO_FACTS_BY"] = "rules" if given.model == LIBRARIAN else "model"
    sys.exit(asyncio.run(_main(given.model, given.people, given.days)))
