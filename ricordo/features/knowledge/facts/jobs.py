"""Jobs that read facts from idle conversations.

The facts of each range of messages are stored once, even after a kill. A search for unread messages
runs every minute, so a turn has no extra cost. A job works for one user and agent. The transaction
that stores a conversation's facts also moves its mark. The model is asked before that transaction,
so it is asked again after a kill.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from ricordo.agents.budgets import put_off
from ricordo.domain.egress import permits
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import Message, TextPart
from ricordo.domain.model import LIBRARIAN, ModelRequest, ModelSettings
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.evidence import is_evidence, is_shown
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.filing import FilingReport, Reading, file_drafts
from ricordo.features.knowledge.facts.options import FactPolicy, FactSettings
from ricordo.features.knowledge.facts.queries import Unread
from ricordo.features.knowledge.facts.reading import MOST_SHOWN, RESPONSE_FORMAT, SYSTEM, Chunk
from ricordo.features.knowledge.facts.records import FactDraft
from ricordo.features.memory_care.notifications.service import tell_of_others
from ricordo.llm.chat import ChatModel
from ricordo.llm.egress import whole_reply
from ricordo.runtime import Runtime
from ricordo.storage import agents, jobs, messages, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import FencedStore
from ricordo.storage.model_costs import ReplyAccount

log = logging.getLogger(__name__)
EXTRACT = "facts.extract"
FIND = "facts.find"
_FIND_SECONDS = 60.0
# Messages that are older than this are not read when facts are switched on.
_LOOK_BACK = timedelta(days=30) // timedelta(microseconds=1)
_SECOND = 1_000_000
_AFTER_FAILURE = timedelta(hours=1) // timedelta(microseconds=1)
_CONTEXT = 4  # earlier messages that are shown together with the new ones
_CONTEXT_SPAN = 60  # earlier messages are searched this far back, counted in seq
_AT_ONCE = 200  # messages of one conversation in one range
OFF = "off"  # in an agent's metadata, as {"facts": "off"}


@dataclass(frozen=True, slots=True)
class _Range:
    """Messages of a conversation after its mark, with a few earlier ones."""

    unread: Unread
    context: Sequence[Message]
    new: Sequence[Message]
    read_to: int

    @property
    def has_evidence(self) -> bool:
        return any(is_evidence(message, self.unread.user_id) for message in self.new)


async def find_unread(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add a job for each user and agent with enough unread messages in idle conversations.

    After a failed job the next one comes an hour later, so that no model is asked every minute.

    Args:
        runtime: The running server.
    """
    since, idle_since = _times(runtime)

    def read(tx: Transaction) -> list[Unread]:
        if not queries.is_any_on(tx):
            return []
        unread = queries.unread(tx, since, idle_since)
        policies = {
            key: queries.policy_of(tx, *key)
            for key in {(row.organization_id, row.user_id) for row in unread}
        }
        unread = [row for row in unread if policies[row.organization_id, row.user_id] != OFF]
        # Without this, agents whose facts are off would get a job each minute for nothing.
        pairs = {(row.organization_id, row.agent_id) for row in unread}
        read_agents = {pair for pair in pairs if not _is_agent_off(tx, *pair)}
        return [row for row in unread if (row.organization_id, row.agent_id) in read_agents]

    rows = await runtime.store.read(read)
    turns: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for row in rows:
        turns[row.organization_id, row.user_id, row.agent_id, row.model] += row.turns
    new_jobs = [
        _job_of(organization_id, user_id, agent_id)
        for (organization_id, user_id, agent_id, model), count in turns.items()
        if count >= _needed_turns(model)
    ]
    if new_jobs:
        failed_since = runtime.store.clock.now() - _AFTER_FAILURE
        failed_keys = await runtime.store.read(
            lambda tx: jobs.failed_keys(tx, EXTRACT, failed_since)
        )
        new_jobs = [new for new in new_jobs if new.key not in failed_keys]
    if new_jobs:
        await runtime.store.write(lambda tx: [jobs.add(tx, new) for new in new_jobs])


def _is_agent_off(tx: Transaction, organization_id: str, agent_id: str) -> bool:
    """Return whether no facts are read from the agent's conversations; True if it was deleted."""
    try:
        agent = agents.get(tx, Scope(organization_id), agent_id)
    except NotFound:
        return True
    return agent.metadata.get("facts") == OFF


def _job_of(organization_id: str, user_id: str, agent_id: str) -> Job:
    return Job(
        EXTRACT,
        organization_id,
        {"user_id": user_id, "agent_id": agent_id},
        key=f"{EXTRACT}:{user_id}:{agent_id}",
        is_single=True,
        user_id=user_id,
    )


def _reads_by_rules(handle: str) -> bool:
    return handle == LIBRARIAN or FactSettings.current().facts_by == "rules"


def _needed_turns(handle: str) -> int:
    return 1 if _reads_by_rules(handle) else FactSettings.current().facts_turns


def _times(runtime: Runtime) -> tuple[int, int]:
    now = runtime.store.clock.now()
    idle = round(FactSettings.current().facts_idle_seconds * _SECOND)
    return now - _LOOK_BACK, now - idle


@dataclass(frozen=True, slots=True)
class _Work:
    """The unread messages of one user and agent, and the settings for reading them."""

    job: Job
    policy: FactPolicy
    model: str
    ranges: Sequence[_Range]

    @property
    def user_id(self) -> str:
        return str(self.job.payload["user_id"])

    @property
    def agent_id(self) -> str:
        return str(self.job.payload["agent_id"])

    def reading_of(self, ranges: Sequence[_Range]) -> Reading:
        shown_messages = [
            message for range_ in ranges for message in (*range_.context, *range_.new)
        ]
        known_ids = frozenset(message.id for range_ in ranges for message in range_.context)
        return Reading(
            self.job.organization_id, self.user_id, self.policy, shown_messages, known_ids
        )


async def extract(runtime: Runtime, job: Job, report: Report) -> None:
    """Read the unread messages of one user and agent, and store their facts.

    Args:
        runtime: The running server.
        job: A job with `user_id` and `agent_id`.
        report: Counts the conversations, or the groups of conversations that cost one model call.

    Raises:
        ModelError: The model failed. Facts of earlier groups are stored.
    """
    work = await runtime.store.read(lambda tx: _work_of(tx, job, *_times(runtime)))
    if work is None:
        return
    if _reads_by_rules(work.model):
        await _extract_by_rules(runtime, work, report)
    elif not await put_off(runtime, job, work.agent_id):
        await _extract_by_model(runtime, work, report)


def _work_of(tx: Transaction, job: Job, since: int, idle_since: int) -> _Work | None:
    """Return the work of a job; None if facts are off, or if the agent was deleted."""
    user_id, agent_id = job.payload["user_id"], job.payload["agent_id"]
    policy = queries.policy_of(tx, job.organization_id, user_id)
    try:
        agent = agents.get(tx, Scope(job.organization_id), agent_id)
    except NotFound:
        return None
    if policy == OFF or agent.metadata.get("facts") == OFF:
        return None
    rows = queries.unread_of(tx, user_id, agent_id, since, idle_since)
    return _Work(job, policy, agent.model, [_range_of(tx, row) for row in rows])


async def _extract_by_rules(runtime: Runtime, work: _Work, report: Report) -> None:
    store = FencedStore(runtime.store, work.job)
    for number, range_ in enumerate(work.ranges, 1):
        reading = work.reading_of([range_])
        drafts = await asyncio.to_thread(_drafts_by_rules, range_)
        await store.write(partial(_file, reading=reading, drafts=drafts, ranges=[range_]))
        report(number, len(work.ranges))


async def _extract_by_model(runtime: Runtime, work: _Work, report: Report) -> None:
    store = FencedStore(runtime.store, work.job)
    models = await runtime.organization_providers.of(work.job.organization_id)
    model = models.get(work.model)
    groups = _groups(work.ranges, FactSettings.current().facts_turns)
    for number, group in enumerate(groups, 1):
        reading = work.reading_of(group)
        drafts: list[FactDraft] = []
        if any(range_.has_evidence for range_ in group):
            live = await runtime.store.read(
                lambda tx: queries.of_states(
                    tx, work.user_id, "current", "proposed", limit=MOST_SHOWN
                )
            )
            destination = runtime.networks.of_model(model.info)
            known_facts = [fact for fact in live if permits(fact.egress, destination)]
            chunk = Chunk(reading.messages, known_facts, work.user_id)
            drafts = await _ask(runtime, model, chunk, work)
        await store.write(partial(_file, reading=reading, drafts=drafts, ranges=group))
        report(number, len(groups))


def _range_of(tx: Transaction, unread: Unread) -> _Range:
    """Return the next messages of a conversation to read, and its mark after them."""
    stored = messages.between(tx, unread.conversation_id, unread.read_to, unread.newest, _AT_ONCE)
    read_to = stored[-1].seq if len(stored) == _AT_ONCE else unread.newest
    earlier = messages.between(
        tx, unread.conversation_id, max(0, unread.read_to - _CONTEXT_SPAN), unread.read_to, _AT_ONCE
    )
    return _Range(
        unread,
        [message for message in earlier if is_shown(message, unread.user_id)][-_CONTEXT:],
        [message for message in stored if is_shown(message, unread.user_id)],
        read_to,
    )


def _drafts_by_rules(range_: _Range) -> list[FactDraft]:
    return [
        draft
        for message in range_.new
        if is_evidence(message, range_.unread.user_id)
        for draft in drafts_in(message.id, message.text, message.created_at)
    ]


def _groups(ranges: Sequence[_Range], turns: int) -> list[list[_Range]]:
    """Return groups of ranges, each with at least `turns` messages of the user.

    The rest waits for more messages, so that `turns` messages cost at most one call.
    """
    groups: list[list[_Range]] = []
    group: list[_Range] = []
    for range_ in ranges:
        group.append(range_)
        if sum(member.unread.turns for member in group) >= turns:
            groups.append(group)
            group = []
    return groups


async def _ask(runtime: Runtime, model: ChatModel, chunk: Chunk, work: _Work) -> list[FactDraft]:
    """Let the model read the chunk; return its drafts."""
    now = runtime.store.clock.now()
    prompt = (
        Message(new_id("message"), "", "", "system", (TextPart(SYSTEM),), created_at=now),
        Message(new_id("message"), "", "", "user", (TextPart(chunk.prompt),), created_at=now),
    )
    settings = ModelSettings(temperature=0, response_format=RESPONSE_FORMAT)
    request = ModelRequest(prompt, settings=settings, user_id=chunk.user_id)
    payer = ReplyAccount(
        runtime.store, work.job.organization_id, agent_id=work.agent_id, user_id=chunk.user_id
    )
    reply = await whole_reply(model, request, runtime.new_clearance(), payer)
    text = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
    drafts, faulty = chunk.drafts_in(text)
    if faulty:
        log.info("facts of a model were refused", extra={"facts": faulty, "job": work.job.id})
    return drafts


def _file(
    tx: Transaction,
    reading: Reading,
    drafts: Sequence[FactDraft],
    ranges: Sequence[_Range],
) -> FilingReport | None:
    """Store the drafts, and move the marks.

    Nothing is stored if another job moved a mark first, or if the user was erased.
    """
    users.lock(tx, reading.user_id)
    if users.find(tx, Scope(reading.organization_id), reading.user_id) is None:
        return None  # erased meanwhile
    marks = [
        queries.read_to(tx, range_.unread.conversation_id, reading.user_id) for range_ in ranges
    ]
    if marks != [range_.unread.read_to for range_ in ranges]:
        return None
    filed = file_drafts(tx, _as_stored(tx, reading), drafts)
    for range_ in ranges:
        queries.set_mark(tx, range_.unread.conversation_id, reading.user_id, range_.read_to)
    if filed.added and reading.policy == "propose":
        tell_of_others(tx, reading.organization_id, reading.user_id)
    return filed


def _as_stored(tx: Transaction, reading: Reading) -> Reading:
    """Return the reading with the present state of its messages.

    Messages that were forgotten or deleted while a model read them are left out.
    """
    ids = [message.id for message in reading.messages]
    stored = {message.id: message for message in messages.by_ids(tx, ids)}
    return replace(reading, messages=[stored[id] for id in ids if id in stored])


HANDLERS = (
    JobHandler(EXTRACT, extract),
    JobHandler(FIND, find_unread, every_seconds=_FIND_SECONDS),
)
