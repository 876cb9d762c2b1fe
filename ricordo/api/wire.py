"""The format of the HTTP API for stored streams and callbacks."""

from collections.abc import Mapping, Sequence
from typing import Any

from ricordo.agents.turn import Answer
from ricordo.api.messages import run_view, turn_json
from ricordo.api.models.messages import MessageFormat
from ricordo.api.sse import SseEncoder
from ricordo.domain.clock import Clock
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.text import Json


class ApiFormat:
    """The implementation of `WireFormat`, by which the runtime uses this format."""

    def stream_encoder(
        self, options: Mapping[str, Any], clock: Clock, *, has_tokens: bool
    ) -> SseEncoder:
        """Return an encoder of a stream with numbered events, from 1 on.

        Args:
            options: The message format that the request chose, as its run stores it.
            clock: Gives the dates of deltas.
            has_tokens: Encode deltas. False: encode only whole messages.
        """
        view = MessageFormat.from_json(dict(options))
        return SseEncoder(view, clock, has_tokens=has_tokens, first=1)

    def result_of(self, run: Run, messages: Sequence[Message]) -> Json:
        """Return the result of an ended run, in the form of an answer.

        Args:
            run: The ended run, which stores the message format that its request chose.
            messages: The messages of the run.
        """
        return turn_json(Answer(run, tuple(messages)), run_view(run))
