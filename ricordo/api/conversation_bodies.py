"""What callers send about threads: bodies and queries, and how they say which thread they mean."""

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from ricordo.agents.threads import ThreadSpec
from ricordo.api.bodies import MAX_COUNT, ModelSettingsBody, SendBody, WholeBody
from ricordo.api.call import Piece
from ricordo.domain.clock import parse_moment
from ricordo.errors import Unsupported
from ricordo.storage.conversations import OrderBy, ThreadFilter
from ricordo.storage.paging import Page

_IS_ARCHIVED = {"unarchived": False, "archived": True, "all": None}


class ThreadFields(WholeBody):
    """What both a new thread and a change of one may say."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: ModelSettingsBody | None = None
    context_window_limit: int | None = Field(None, ge=4096, le=MAX_COUNT)
    archived: bool | None = None
    hidden: bool | None = None
    isolated_block_labels: list[str] | None = None

    def own_settings(self) -> dict[str, Any]:
        """The model settings that were sent, in our words; null means the provider's default."""
        return self.model_settings.changes() if self.model_settings else {}

    def refuse_unsupported(self) -> None:
        """Raise Unsupported where the body asks for something this version does not do."""
        if self.isolated_block_labels:
            raise Unsupported(
                "isolated_block_labels is not supported: all threads of an agent share its blocks. Leave it out."
            )


class ThreadBody(ThreadFields):
    """A thread to be made; with `user_id` it sees that user's memory, else that of the user whom the agent was made for."""

    user_id: str | None = Field(None, min_length=1, max_length=255)

    def spec(self) -> ThreadSpec:
        """The thread to be made."""
        self.refuse_unsupported()
        return ThreadSpec(
            summary=self.summary,
            description=self.description,
            model=self.model,
            model_settings=self.own_settings(),
            context_window=self.context_window_limit,
            is_hidden=bool(self.hidden),
            is_archived=bool(self.archived),
            user=self.user_id,
        )


class ThreadChange(ThreadFields):
    """What shall change of a thread; a field that is left out stays, and null takes the agent's own again."""

    last_message_at: str | None = None

    def changes(self, now: int) -> dict[str, Any]:
        """The columns that change. `now` is in microseconds UTC; raises Invalid, Unsupported."""
        self.refuse_unsupported()
        sent = self.model_fields_set
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("summary", "description", "model") if name in sent
        }
        if "model_settings" in sent:
            values["model_settings"] = self.own_settings()
        if "context_window_limit" in sent:
            values["context_window"] = self.context_window_limit
        if "last_message_at" in sent:
            moment = self.last_message_at
            values["last_message_at"] = moment and parse_moment(moment, UTC, name="last_message_at")
        if self.hidden is not None:
            values["hidden"] = self.hidden
        if self.archived is not None:
            values["archived_at"] = now if self.archived else None
        return values


class ThreadSendBody(SendBody):
    """Messages for a thread, and how the answer is wanted: as a stream, unless told otherwise."""

    agent_id: str | None = None
    streaming: bool = True


class RecompileBody(WholeBody):
    """Which agent's own thread is meant."""

    agent_id: str | None = None
    compaction_settings: dict[str, Any] | None = None

    def refuse_unsupported(self) -> None:
        """Raise Unsupported where the body asks for something this version does not do."""
        if self.compaction_settings:
            raise Unsupported("Recompiling a prompt compacts nothing: compaction_settings has no effect. Leave it out.")


@dataclass(frozen=True, slots=True)
class ThreadQuery:
    """Which threads are wanted, and in which order."""

    agent_id: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "unarchived"
    archived: Annotated[bool | None, Query(description="The shorter way to say `archive_status`.")] = None
    summary_search: Piece = None
    before: Annotated[str | None, Query(description="Only items ahead of the one with this id.")] = None
    after: Annotated[str | None, Query(description="Only items behind the one with this id.")] = None
    limit: Annotated[int, Query(ge=1, le=1000, description="How many items at most.")] = 50
    order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "desc"
    order_by: Annotated[OrderBy, Query(description="By which time.")] = "last_message_at"

    def page(self) -> Page:
        """The page that is asked for."""
        return Page(self.limit, self.before, self.after, self.order)

    def filter(self) -> ThreadFilter:
        """The threads that are asked for."""
        is_archived = _IS_ARCHIVED[self.archive_status] if self.archived is None else self.archived
        return ThreadFilter(self.agent_id, is_archived, self.summary_search, self.order_by)
