"""Streams that are read again, and turns that nobody waits for: resume a run's stream, find a conversation's, send and leave."""

from typing import Annotated

from fastapi import Body, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from ricordo.agents.conversations import DEFAULT, resolve_conversation
from ricordo.api.call import Here, RequestContext, answer
from ricordo.api.models.base import RequestPart
from ricordo.api.routing import Routes
from ricordo.api.sse import STREAM, sse_response
from ricordo.api.stored_streams import Resumption, follow
from ricordo.domain.clock import SECOND
from ricordo.domain.run import Run
from ricordo.errors import Invalid, NotFound
from ricordo.storage import messages, runs
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["runs"])


class ResumeRequest(RequestPart):
    """From where on a stream is wanted, and how."""

    starting_after: int = Field(0, ge=0, description="The last seq_id that was read.")
    include_pings: bool | None = True
    poll_interval: float | None = Field(
        0.1, ge=0, le=60, description="Seconds between two looks at another process's run."
    )
    batch_size: int | None = Field(100, ge=1, le=1000)
    run_id: str | None = Field(None, description="The run; without it the conversation's newest.")
    otid: str | None = Field(None, description="The otid of a message that the run took.")
    agent_id: str | None = Field(None, description="Whose own thread is meant by the conversation `default`.")

    def resumption(self) -> Resumption:
        """How the stream is read."""
        return Resumption(
            self.starting_after,
            self.include_pings is not False,
            0.1 if self.poll_interval is None else self.poll_interval,
            self.batch_size or 100,
        )


Resume = Annotated[ResumeRequest | None, Body()]


@router.post("/runs/{run_id}/stream", response_class=StreamingResponse, responses=STREAM)
async def resume(here: Here, run_id: str, body: Resume = None) -> Response:
    """The stream of a run that was begun with `background`, from any event on: the same bytes, on every server."""
    run = await here.store.read(lambda tx: runs.get(tx, here.scope, run_id))
    return stream_of(here, run, (body or ResumeRequest()).resumption())


@router.post("/conversations/{conversation_id}/stream", response_class=StreamingResponse, responses=STREAM)
async def resume_conversation(here: Here, conversation_id: str, body: Resume = None) -> Response:
    """The stream of the conversation's running turn, else of its newest; or of the run that is named."""
    wanted = body or ResumeRequest()
    run = await here.store.read(lambda tx: _run_of(tx, here, conversation_id, wanted))
    return stream_of(here, run, wanted.resumption())


def stream_of(here: RequestContext, run: Run, resumption: Resumption) -> Response:
    """The response that reads this run's stored stream; refuses one that is not stored, or no more."""
    if not run.background:
        raise Invalid(
            f"{run.id} was not begun with background=true, so its stream was not kept. Read its messages instead: "
            f"GET /v1/runs/{run.id}/messages."
        )
    kept = here.runtime.settings.stream_hours
    if run.ended_at is not None and run.ended_at < here.store.clock.now() - round(kept * 3600 * SECOND):
        sentence = f"The stream of {run.id} is kept for {kept:g} hours after its end, and has expired."
        return answer({"detail": f"{sentence} Read its messages instead: GET /v1/runs/{run.id}/messages."}, 410)
    return sse_response(follow(here.runtime, run, resumption))


def _run_of(tx: Transaction, here: RequestContext, conversation_id: str, wanted: ResumeRequest) -> Run:
    agent_id = wanted.agent_id if conversation_id == DEFAULT else None
    conversation = resolve_conversation(tx, here.scope, conversation_id, agent_id).id
    if wanted.run_id:
        run = runs.get(tx, here.scope, wanted.run_id)
        if run.conversation_id != conversation:
            raise NotFound(f"Run with ID {wanted.run_id} not found in this conversation")
        return run
    if wanted.otid:
        found = [one for one in messages.by_otids(tx, conversation, [wanted.otid]) if one.run_id]
        if not found:
            raise NotFound(f"No message of this conversation has the otid {wanted.otid}")
        return runs.get(tx, here.scope, str(found[0].run_id))
    newest = runs.page(tx, here.scope, Page(limit=1), conversation_id=conversation, background=True)
    if not newest:
        raise NotFound("No run of this conversation was begun with background=true, so there is no stream to read.")
    return newest[0]
