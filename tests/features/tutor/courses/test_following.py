"""Blocks of many students follow a course in portions, in the order of its changes."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from sqlalchemy import select

from ricordo.domain.block import Block
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.features.tutor.courses import applying
from ricordo.features.tutor.courses import jobs as course_jobs
from ricordo.features.tutor.courses.course_file import Course, parse_course
from ricordo.memory import user_memory
from ricordo.storage import blocks, jobs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs as jobs_table
from ricordo.storage.schema.memory_tables import blocks as blocks_table
from tests.agents.conftest import open_stage, stage
from tests.conftest import BOTH
from tests.seams.stage import Stage
from tests.seams.stores import count_statements, killed_after

__all__ = ["open_stage", "stage"]
DATABASES = BOTH
SCOPE = Scope()
COURSE = """
title = "Essays"
[[agent]]
name = "coach"
instructions = "Coach."
[[block]]
label = "journey"
[block.fields.first]
title = "{first}"
[block.fields.second]
title = "{second}"
[[block]]
label = "{plan}"
was = "{was}"
"""


def course(first: str, second: str, plan: str) -> Course:
    return parse_course(
        COURSE.format(
            first=first, second=second, plan=plan, was="plan" if plan == "piano" else "scheme"
        ),
        "essays",
    )


# The second change swaps the headings. Repeating it would swap them back.
FORMS = (
    course("One", "Two", "plan"),
    course("Uno", "Due", "plan"),
    course("Due", "Uno", "piano"),
    course("Due", "Tre", "piano"),
)


async def next_job(stage: Stage) -> Job | None:
    await stage.store.write(jobs.take_over)

    def claim(tx: Transaction) -> Job | None:
        is_next = (jobs_table.c.kind == applying.FOLLOW) & (jobs_table.c.status == "waiting")
        row = tx.first(select(jobs_table.c.id).where(is_next).order_by(jobs_table.c.seq))
        return jobs.claim_one(tx, "worker", row.id) if row else None

    return await stage.store.write(claim)


async def test_blocks_follow_each_change_once_although_the_job_is_killed_after_each_portion(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "FOLLOWED_AT_ONCE", 2)
    names = [f"student-{number}" for number in range(7)]

    def write(tx: Transaction) -> None:
        for name in names:
            owned = user_memory.open_memory(tx, SCOPE, name, makes=True)
            text = f"## One\nfirst of {name}\n## Two\nsecond of {name}"
            user_memory.put(tx, owned, "journey", text, owned.owner)
            user_memory.put(tx, owned, "plan", "A plan.", owned.owner)

    await stage.store.write(write)
    for old, new in pairwise(FORMS):
        with count_statements(stage.store) as counted:
            await stage.store.write(
                lambda tx, old=old, new=new: applying.follow_blocks(tx, new, old)  # type: ignore[misc]
            )
        assert len(counted.statements) < 60

    kills = 0
    while job := await next_job(stage):
        with suppress(asyncio.CancelledError), killed_after(stage.runtime, 1):
            await course_jobs.follow(stage.runtime, job, lambda _done, _all: None)
            await stage.store.write(lambda tx, job=job: jobs.finish(tx, job))  # type: ignore[misc]
            continue
        kills += 1
        assert kills < 60
    assert kills > 8

    def read(tx: Transaction) -> list[Block]:
        rows = tx.all(select(blocks_table.c.id).order_by(blocks_table.c.seq))
        return blocks.by_ids(tx, SCOPE, [row.id for row in rows])

    stored = await stage.store.read(read)
    texts = [block.value for block in stored if block.label == "journey"]
    assert texts == [f"## Due\nfirst of {name}\n## Tre\nsecond of {name}" for name in names]
    assert [block.label for block in stored] == ["journey", "piano"] * len(names)


@pytest.mark.parametrize("other", ["piano", "Piano"])
async def test_a_block_whose_new_label_is_not_free_follows_in_everything_else(
    stage: Stage, other: str
) -> None:
    form = (
        '[[agent]]\nname = "coach"\ninstructions = "Coach."\n[[block]]\nlabel = "{label}"\n{more}\n'
    )
    old = parse_course(form.format(label="plan", more=""), "essays")
    new = parse_course(form.format(label="piano", more='was = "plan"\ntitle = "New"'), "essays")

    def write(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada", makes=True)
        for label in ("plan", other):
            user_memory.put(tx, owned, label, "A text.", owned.owner)
        applying.follow_blocks(tx, new, old)

    await stage.store.write(write)
    stored = await stage.store.read(
        lambda tx: user_memory.listed(tx, user_memory.open_memory(tx, SCOPE, "ada"))
    )
    assert {block.label: block.title for block in stored} == {"plan": "New", other: None}
