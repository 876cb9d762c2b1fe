"""Import chats and memories from an export, for one user or everybody, and for one agent.

Ids are computed from those in the export, and each chat is recorded once it is complete. So a
killed import can continue, the same file changes nothing the second time, and a later export adds
new messages. No content is trusted.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from ricordo.agents.conversations import system_message
from ricordo.agents.lifecycle import AgentSpec, insert_agent, prepare
from ricordo.domain.agent import Conversation
from ricordo.domain.job import Report
from ricordo.domain.message import Message, Part, ReasoningPart, TextPart
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS, Passage
from ricordo.domain.scope import IMPERSONATE, LOCAL_USER, Actor, Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.documents.imports import queries
from ricordo.features.documents.imports.chat_files import (
    TITLES,
    ExportedChat,
    SkippedMember,
    read_chats,
)
from ricordo.features.documents.imports.queries import Outcome
from ricordo.features.documents.imports.remembered import (
    REFUSALS,
    RememberedText,
    RememberedTexts,
    propose_remembered,
)
from ricordo.memory.commit import file_passages
from ricordo.memory.proposals import expiry_of
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, archives, blocks, conversations, messages, users
from ricordo.storage.engine.store import Transaction

_NO_MEMORIES = "your key lacks the scope archives:write, so no memories are imported"
_BATCH = 200  # messages of one transaction
_TOKEN_CHARACTERS = 4  # on average


@dataclass(frozen=True, slots=True)
class Target:
    """The agent and the user that receive an export.

    `source` is the name of the source in the records. `takes_memories` is False if the caller may
    not archive; then only the chats of a file are imported, not its memories. Texts that the other
    assistant remembered become proposals for the user `memory_of`. If the import is for everybody,
    `memory_of` is None, and there are no proposals.
    """

    scope: Scope
    kind: str
    agent_id: str
    source: str
    takes_memories: bool = True
    memory_of: str | None = None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open an exported file for reading, as a context manager.

    Args:
        path: The path of the file on this machine.

    Raises:
        NotFound: There is no such file.
        Invalid: The file cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}. Give the path of the exported file.") from None
    except OSError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror}. Give the path of the exported file."
        ) from error
    with file:
        yield file


async def scope_for(runtime: Runtime, user: str | None) -> Scope:
    """Return the scope of the server's operator, acting for this user.

    Args:
        runtime: The running server.
        user: A user's id or name; an unknown user is created. None means no user.
    """
    if user is None:
        return Scope()
    user_id = await runtime.store.write(lambda tx: users.find_or_make(tx, Scope(), user))
    return Scope().acting_for(user_id)


async def target_of(runtime: Runtime, scope: Scope, kind: str, agent_id: str | None) -> Target:
    """Return the agent and the user that an export of this kind is imported for.

    If no agent is named, it is the one whose id is computed from the kind and the user. If there is
    none, it is created. A pasted list needs no agent.

    Args:
        runtime: The running server.
        scope: The caller, with the user who gets the import.
        kind: A key of `TITLES`, such as "chatgpt"; "pasted" is a list of memories.
        agent_id: An existing agent; None or "" for the agent of this kind of import.

    Raises:
        NotFound: if the caller may not use the agent, or no model is found for a new one.
        Invalid: for a pasted list without a user.
        Forbidden: for a pasted list, if the caller has no memory and may not name a user.
    """
    organization = scope.organization_id
    user = scope.subject or ""
    memory_of = scope.subject or (LOCAL_USER if scope.is_local_user else None)
    if kind == "pasted":
        memory_of = owner_of_list(scope)
        if memory_of is None and scope.may(IMPERSONATE):
            raise Invalid("Name the user whom these memories are about, in `user`.")
        if memory_of is None:
            raise Forbidden(
                "Your key has no memory, so a list cannot be imported into it. Upload the list "
                "with a key of the user whom it is about."
            )
        own_scope = replace(scope, subject_id=memory_of)
        return Target(own_scope, kind, "", f"{kind}:{memory_of}", memory_of=memory_of)
    id = agent_id or queries.made_id(organization, "agent", kind, user)
    target = Target(scope, kind, id, f"{kind}:{id}:{user}", memory_of=memory_of)
    if agent_id:
        await runtime.store.read(lambda tx: agents.load(tx, scope, id))
        return target
    if await runtime.store.read(lambda tx: agents.find(tx, scope, id) is not None):
        return target
    draft = AgentSpec(
        id=id,
        name=TITLES[kind],
        user=scope.subject,
        description=f"Created for an import from {TITLES[kind]}.",
    )
    spec, info = await prepare(runtime, scope, draft)

    def make(tx: Transaction) -> None:
        if agents.find(tx, scope, id) is None:
            insert_agent(tx, runtime, scope, spec, info)
            # These records belong to an earlier agent that was deleted.
            queries.forget_items(tx, organization, target.source)

    await runtime.store.write(make)
    return target


def owner_of_list(scope: Scope) -> str | None:
    """Return the user whom a caller's pasted list is about; None if the caller must name one.

    Args:
        scope: The caller, already acting for a user that the request names.
    """
    if scope.subject:
        return scope.subject
    if scope.is_local_user:
        return LOCAL_USER
    is_person = scope.role != "service" and scope.user_id.startswith("user-")
    if is_person and scope.subject_id is None and not scope.may(IMPERSONATE):
        return scope.user_id
    return None


async def import_chats(
    runtime: Runtime, target: Target, file: IO[bytes], report: Report
) -> dict[str, Any]:
    """Import the chats of the file, and return the report.

    Args:
        runtime: The running server.
        target: The agent and the user, from `target_of`.
        file: The exported file, at its beginning: JSON, or a zip file; for a pasted list, its text.
        report: Counts the entries; until the end, the total is one more than the count.

    Returns:
        The outcome of all imports from this source, as `queries.report_of` gives it.

    Raises:
        Invalid: if the file cannot be read to its end, or no entry of it can be read.
    """
    organization = target.scope.organization_id
    refused = Outcome()
    await runtime.organization_providers.of(organization)
    states = await runtime.store.read(
        lambda tx: queries.done_items(tx, organization, target.source)
    )
    chats = read_chats(target.kind, file)
    noun = "memories" if target.kind == "mem0" else "chats"
    total = 0
    unreadable: list[str] = []
    remembered = RememberedTexts()
    while (chat := await asyncio.to_thread(next, chats, None)) is not None:
        if isinstance(chat, SkippedMember):
            refused.leave(
                "files of the export",
                chat.name,
                "it contains no chats and no memories that can be imported",
            )
            continue
        total += 1
        if isinstance(chat, str):
            refused.leave(noun, f"no. {total}", chat)
            unreadable.append(chat)
            continue
        if target.memory_of is not None and chat.remembered:
            remembered.add(chat.remembered)
            if chat.memory is not None:
                continue
        if chat.memory is not None and not target.takes_memories:
            refused.leave(
                "memories",
                "",
                _NO_MEMORIES,
            )
        elif states.get(chat.id) != _state_of(chat):
            try:
                await _import_chat(runtime, target, chat)
            except (Invalid, Conflict, NotFound, Forbidden) as error:
                refused.leave(noun, chat.title, str(error))
        report(total, total + 1)
    report(total, total)
    await _propose_all(runtime, target, remembered.current(), states, refused)
    await runtime.store.write(
        lambda tx: queries.note_refused(tx, target.scope, target.source, refused)
    )
    if unreadable and len(unreadable) == total:
        reason, count = Counter(unreadable).most_common(1)[0]
        if count == total:
            share = "all of it"
        else:
            share = f"{count} of {total} parts"
        raise Invalid(
            f"Nothing in this file is an export of {TITLES[target.kind]}. The reason for {share}: "
            f"{reason}."
        )
    return await runtime.store.read(lambda tx: queries.report_of(tx, organization, target.source))


async def _propose_all(
    runtime: Runtime,
    target: Target,
    remembered: Sequence[RememberedText],
    states: Mapping[str, str],
    refused: Outcome,
) -> None:
    """Propose the remembered texts for the user's memory.

    A text that was proposed or is known already is not proposed again. A refused text is noted, and
    the next import of the same file tries it again.
    """
    new = [one for one in remembered if one.key not in states]
    if not target.takes_memories:
        for _ in new:
            refused.leave("memories", "", _NO_MEMORIES)
        return
    expires_after = expiry_of(runtime.settings)
    if target.agent_id:
        author = Actor("agent", target.agent_id, TITLES[target.kind])
    else:
        author = Actor("system", "import", TITLES[target.kind])
    for one in new:
        try:
            await runtime.store.write(
                partial(_propose_one, target=target, author=author, one=one, after=expires_after)
            )
        except REFUSALS as error:
            refused.leave("memories", one.text, str(error))


def _propose_one(
    tx: Transaction, target: Target, author: Actor, one: RememberedText, after: int | None
) -> None:
    user = users.require(tx, Scope(target.scope.organization_id), target.memory_of or "")
    is_new = propose_remembered(tx, user, author, one.text, after)
    kind = "memories proposed" if is_new else "memories known already"
    queries.insert_item(
        tx,
        target.scope,
        target.source,
        item=one.key,
        outcome=Outcome({kind: 1}),
        state="",
        user_id=target.memory_of,
    )


def _state_of(chat: ExportedChat) -> str:
    """Return the state of the chat; it changes when messages are added."""
    if chat.messages:
        return f"{len(chat.messages)}/{chat.messages[-1].id}"
    return ""


async def _import_chat(runtime: Runtime, target: Target, chat: ExportedChat) -> None:
    if chat.memory is not None:
        await runtime.store.write(partial(_insert_memory, target=target, chat=chat))
        return
    chat_messages = _messages(target, chat, runtime.store.clock.now())
    chat_context: dict[str, Any] = {
        "runtime": runtime,
        "target": target,
        "chat": chat,
        "chat_messages": chat_messages,
    }
    last = max(len(chat_messages) - 1, 0) // _BATCH * _BATCH
    for start in range(0, last, _BATCH):
        batch = chat_messages[start : start + _BATCH]
        await runtime.store.write(partial(_insert, **chat_context, batch=batch))
    await runtime.store.write(partial(_finish, **chat_context, batch=chat_messages[last:]))


def _messages(target: Target, chat: ExportedChat, now: int) -> list[Message]:
    """Return the messages as they are stored.

    Each message is later than the message before it. A message whose time is missing or too early
    gets a time just after that message.
    """
    organization = target.scope.organization_id
    stored = []
    times = [message.created_at for message in chat.messages if message.created_at]
    if times:
        created_at = times[0]
    else:
        created_at = chat.created_at or now
    for message in chat.messages:
        created_at = max(created_at + 1, message.created_at or 0)
        if message.thoughts:
            parts: list[Part] = [ReasoningPart(message.thoughts)]
        else:
            parts = []
        if message.text:
            parts.append(TextPart(message.text))
        stored.append(
            Message(
                id=queries.made_id(organization, "message", target.source, chat.id, message.id),
                agent_id=target.agent_id,
                conversation_id=_conversation_id(target, chat),
                role="user" if message.role == "user" else "assistant",
                parts=tuple(parts),
                created_at=created_at,
                organization_id=organization,
                user_id=target.scope.subject,
                model=message.model,
                is_untrusted=True,
            )
        )
    return stored


def _conversation_id(target: Target, chat: ExportedChat) -> str:
    return queries.made_id(target.scope.organization_id, "conv", target.source, chat.id)


def _insert(
    tx: Transaction,
    runtime: Runtime,
    target: Target,
    *,
    chat: ExportedChat,
    chat_messages: Sequence[Message],
    batch: Sequence[Message],
) -> Conversation:
    """Store the messages of the batch that are missing, and return the conversation.

    A missing conversation is created.
    """
    scope = target.scope
    id = _conversation_id(target, chat)
    # The lock keeps the conversation's egress label unchanged until messages with it are stored.
    conversations.lock(tx, id)
    conversation = conversations.get(tx, id)
    if conversation is None:
        state = agents.load(tx, scope, target.agent_id)
        if chat_messages:
            at = chat_messages[0].created_at - 1
        else:
            at = tx.clock.now()
        draft = Conversation(
            id,
            scope.organization_id,
            target.agent_id,
            user_id=scope.subject,
            summary=chat.title or None,
            created_by=scope.user_id,
            created_at=at,
            updated_at=at,
            message_count=1,
        )
        shown_blocks = blocks.of_agent(
            tx, target.agent_id, scope.subject, state.agent.course, memory_id=state.agent.memory_id
        )
        prompt, key = system_message(
            tx, runtime, replace(state, conversation=draft, blocks=shown_blocks)
        )
        conversation = replace(draft, window=(prompt.id,), prompt_key=key)
        conversations.insert_one(tx, conversation)
        insert_messages(tx, [replace(prompt, created_at=at)])
    stored = messages.by_ids(tx, [message.id for message in batch])
    stored_ids = {message.id for message in stored}
    new = [
        replace(message, egress=conversation.egress)
        for message in batch
        if message.id not in stored_ids
    ]
    insert_messages(tx, new)
    if new:
        conversations.add_past(tx, id, len(new), new[-1].created_at)
    return conversation


def _finish(
    tx: Transaction,
    runtime: Runtime,
    target: Target,
    *,
    chat: ExportedChat,
    chat_messages: Sequence[Message],
    batch: Sequence[Message],
) -> None:
    """Store the last messages, fill the window with the newest, and record the chat."""
    outcome = Outcome({"chats": 1, "messages": len(chat_messages)}, chat.left_out.left_out)
    if chat_messages:
        conversation = _insert(
            tx, runtime, target, chat=chat, chat_messages=chat_messages, batch=batch
        )
        agent = agents.load(tx, target.scope, target.agent_id, conversation.id).agent
        room = agent.context_window * _TOKEN_CHARACTERS // 2
        newest: list[str] = []
        for message in reversed(chat_messages[-_BATCH:]):
            room -= len(message.text)
            if room < 0:
                break
            newest.insert(0, message.id)
        # A conversation that was continued here keeps its window.
        if {*conversation.window[1:]} <= {message.id for message in chat_messages}:
            conversations.change(tx, conversation.id, window=[conversation.window[0], *newest])
    _record(tx, target, chat, outcome)


def _insert_memory(tx: Transaction, target: Target, chat: ExportedChat) -> None:
    scope = target.scope
    memory = chat.memory or {}
    id = queries.made_id(scope.organization_id, "passage", target.source, chat.id)
    outcome = Outcome({"memories": 1})
    if not archives.passages_by_ids(tx, [id]):
        state = agents.load(tx, scope, target.agent_id)
        now = tx.clock.now()
        tags = [tag[:LONGEST_TAG] for tag in dict.fromkeys((target.kind, *memory["tags"]))]
        passage = Passage(
            id,
            scope.organization_id,
            archive_id="",
            text=memory["text"],
            tags=tuple(tags[:MOST_TAGS]),
            metadata=memory["metadata"],
            user_id=scope.subject,
            created_by=scope.user_id,
            is_untrusted=True,
            created_at=chat.created_at or now,
            updated_at=now,
        )
        file_passages(tx, state, [passage])
    _record(tx, target, chat, outcome)


def _record(tx: Transaction, target: Target, chat: ExportedChat, outcome: Outcome) -> None:
    scope = target.scope
    queries.forget_items(tx, scope.organization_id, target.source, chat.id)
    queries.insert_item(
        tx,
        scope,
        target.source,
        item=chat.id,
        outcome=outcome,
        state=_state_of(chat),
        user_id=scope.subject,
    )
