"""The adaptation of one call to its model.

A call is sent in the form that was learned for its model. If the model's server refuses that form,
another one is tried. Sometimes the refusal's text asks for a form. If that form is accepted, it is
remembered for the model's address, and the next call begins with it. A form that was only guessed
is remembered later: it must also help later calls, and the plain form must be refused meanwhile.
Otherwise a server that recovers by itself would teach a wrong lesson. The number of tries of a call
is limited.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ricordo.domain.message import ImagePart
from ricordo.domain.model import ModelInfo, ModelProfile, ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.chat import ChatModel
from ricordo.llm.learned_dialect import (
    DOUBTFUL_CALLS,
    GUESS_CALLS,
    NOTHING_LEARNED,
    HelpedCalls,
    Key,
    LearnedDialect,
    LearnedDialects,
)
from ricordo.llm.refusals import Refusal, guesses, is_too_long, lessons, limit_in, logprobs_lessons
from ricordo.llm.tokens import request_tokens

Json = dict[str, Any]
MOST_LESSONS = 8
_MOST_BUDGET_CUTS = 2
# HTTP statuses of a refused form. Some servers also refuse a form with the status of a failure;
# only the error's text distinguishes the two.
_REFUSED = frozenset({400, 405, 406, 415, 422, 501})
_FAILED = frozenset({500})
_LEAST_BUDGET = 16
_MARGIN = 64
# Tokens: a conversation of this size may be too long for an unknown server.
_LARGE = 3_000
_BUDGETS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """The lessons about one model, in the store of its server."""

    store: LearnedDialects
    key: Key
    info: ModelInfo

    @property
    def dialect(self) -> LearnedDialect:
        return self.store.get(self.key)

    @property
    def window(self) -> int | None:
        """Return the context window that refusals proved.

        Returns None if they proved none, or if the server reports another window since then.
        """
        learned = self.dialect
        if learned.told_window == self.info.context_window:
            return learned.window
        return None

    def lines(self) -> list[str]:
        """Return the lessons as sentences for people."""
        return replace(self.dialect, window=self.window).lines()

    def learn_window(self, tokens: int) -> None:
        """Remember that the model's window is smaller than its server reports.

        Args:
            tokens: The window in tokens that refusals proved.
        """
        dialect = replace(self.dialect, window=max(1, tokens), told_window=self.info.context_window)
        self.store.learn(self.key, dialect)

    def note_count(self, conversation_id: str, estimate: int, counted: int) -> None:
        """Note an accepted prompt and compare the server's count of it with our estimate.

        Args:
            conversation_id: The conversation whose prompts are compared with each other.
            estimate: Our estimate of the prompt, in tokens.
            counted: The server's count of the prompt, in tokens.
        """
        self.store.note_accepted(self.key, estimate)
        self.store.note_count(self.key, conversation_id, estimate, counted)


def lessons_of(
    info: ModelInfo, store: LearnedDialects | None = None, owner: str = ""
) -> LearnedModel:
    """Return a model's lessons.

    Args:
        info: The model.
        store: The lessons of this server; None begins with none and stores nothing.
        owner: The organization of the model's provider; "" for the server's providers.
    """
    return LearnedModel(store or LearnedDialects(), (owner, info.endpoint or "", info.name), info)


def learned_of(model: object) -> LearnedModel | None:
    """Return the lessons of a chat model.

    Args:
        model: A chat model of any adapter or plugin.

    Returns:
        The lessons; None for a model without adaptation.
    """
    learned = getattr(model, "learned", None)
    return learned if isinstance(learned, LearnedModel) else None


def reads_plain_results(
    model: ChatModel, learned: LearnedModel | None, profile: ModelProfile = "full"
) -> bool:
    """Return whether the model reads tool results as plain text.

    That is so if it is small, or if it has no separate role for results, as far as is known.

    Args:
        model: The model.
        learned: The lessons about the model; None for a model without adaptation.
        profile: The profile of the agent that uses the model.
    """
    calls_as_text = learned is not None and learned.dialect.calls_as_text
    return profile != "full" or model.info.calls_tools is False or calls_as_text


def _is_refusal(error: ModelError) -> bool:
    if error.status is None:
        return error.kind == "llm_bad_request"
    return error.status in _REFUSED


def _is_failure(error: ModelError) -> bool:
    if error.status is None:
        return error.kind == "llm_error"
    return error.status in _FAILED


@dataclass(slots=True)
class Adaptation:
    """The form of one call.

    `build` makes the body of a request in a given form. `may_guess` allows forms that no refusal
    asked for. `learned` is the form that is tried now; `is_guess` marks it as guessed. With
    `is_doubtful`, the refusal may have been a short outage of the server. `budget` is the output
    budget of this call, if the prompt leaves less room than usual.
    """

    model: LearnedModel
    build: Callable[[ModelRequest, LearnedDialect], Json]
    may_guess: bool = True
    learned: LearnedDialect = NOTHING_LEARNED
    is_guess: bool = False
    is_doubtful: bool = False
    budget: int | None = None
    _tries: int = 0
    _cuts: int = 0
    _guesses: list[LearnedDialect] | None = field(default=None)
    _helped: dict[LearnedDialect, HelpedCalls] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learned = self.model.dialect
        self._helped = self.model.store.helped(self.model.key)

    def body(self, request: ModelRequest) -> Json:
        """Return the body to send, in the form that is tried now.

        Args:
            request: The request of the call.
        """
        body = self.build(request, self.learned)
        if self.budget is not None:
            body |= {name: min(body[name], self.budget) for name in _BUDGETS if name in body}
        return body

    def confirm(self, request: ModelRequest) -> None:
        """Remember the form that was accepted.

        A guess is remembered only after it helped later calls too.

        Args:
            request: The request that was accepted. Guesses that would have changed it are
                disproved.
        """
        store = self.model.store
        key = self.model.key
        if not self.is_guess:
            self._disprove_guesses(request)
        if not self._tries:
            return
        store.note_accepted(key, request_tokens(request))
        if self.is_guess:
            earlier = self._helped.get(self.learned)
            earlier_calls = earlier.calls if earlier else 0
            last_id = request.messages[-1].id
            calls = store.note_help(key, self.learned, earlier_calls, message_id=last_id)
            if self.is_doubtful:
                needed_calls = DOUBTFUL_CALLS
            else:
                needed_calls = GUESS_CALLS
            if calls < needed_calls:
                return
        store.learn(key, self.learned, is_guess=self.is_guess)

    def _disprove_guesses(self, request: ModelRequest) -> None:
        """Forget guesses that would have changed this accepted request.

        Only guesses whose refused request belongs to the same conversation are disproved.
        """
        helped = self.model.store.helped(self.model.key)
        if not helped:
            return
        ids = {message.id for message in request.messages}
        body = self.build(request, self.learned)
        wrong = [
            guess
            for guess, record in helped.items()
            if record.message_id in ids and self.build(request, guess) != body
        ]
        self.model.store.disprove(self.model.key, wrong)

    def answer_refusal(
        self, error: ModelError, request: ModelRequest, *, is_last: bool
    ) -> ModelError | None:
        """Return None to repeat the call in another form, else the classified error.

        Args:
            error: The refusal or failure.
            request: The request. `body` made the sent body from it.
            is_last: Whether no retry is left for a temporary error.
        """
        if not error.words and error.status is None:
            return error
        refusal = Refusal.of(error.words, self.body(request))
        if self._try_first(logprobs_lessons(refusal, self.learned), request, is_guess=False):
            return None
        if error.kind == "context_window_exceeded":
            return self._answer_length(error, refusal, request)
        return self._answer_form(error, refusal, request, is_last=is_last)

    def _answer_form(
        self, error: ModelError, refusal: Refusal, request: ModelRequest, *, is_last: bool
    ) -> ModelError | None:
        # Servers answer 405 to a wrong address, and some to a request of another form.
        if error.is_lasting and error.status != 405:
            return error
        is_refusal = _is_refusal(error)
        if not (is_refusal or _is_failure(error)) or not refusal.is_about_form:
            return error
        if self._try_first(lessons(refusal, self.learned), request, is_guess=False):
            return None
        if is_refusal and self._is_too_long(refusal, request):
            return self._answer_length(_too_long(error), refusal, request)
        may_guess = self.may_guess and (is_refusal or is_last) and not _has_pictures(request)
        if may_guess and self._guess(request):
            self.is_doubtful = not is_refusal
            return None
        if is_refusal and self.may_guess and self._may_be_too_long(request):
            return _too_long(error)
        return error

    def _try_first(
        self, forms: Iterable[LearnedDialect], request: ModelRequest, *, is_guess: bool
    ) -> bool:
        """Take the first form that changes the request.

        Returns False if there is none, or if the call has used up its tries.
        """
        if self._tries >= MOST_LESSONS:
            return False
        body = self.build(request, self.learned)
        for form in forms:
            if form != self.learned and self.build(request, form) != body:
                self.learned = form
                self.is_guess = self.is_guess or is_guess
                self._tries += 1
                return True
        return False

    def _guess(self, request: ModelRequest) -> bool:
        if self._guesses is None:
            self._guesses = list(guesses(self.learned, is_stream=request.stream))
        while self._guesses:
            if self._try_first([self._guesses.pop(0)], request, is_guess=True):
                return True
        return False

    def _is_too_long(self, refusal: Refusal, request: ModelRequest) -> bool:
        accepted = self.model.store.accepted(self.model.key)
        window = self.model.window or self.model.info.context_window
        return is_too_long(
            refusal.text, estimate=request_tokens(request), window=window, accepted=accepted
        )

    def _may_be_too_long(self, request: ModelRequest) -> bool:
        """Return whether the request is larger than every accepted one.

        If none was accepted yet, return whether it is large. This check comes last, after all other
        forms were tried.
        """
        accepted = self.model.store.accepted(self.model.key)
        return request_tokens(request) > (accepted or _LARGE)

    def _answer_length(
        self, error: ModelError, refusal: Refusal, request: ModelRequest
    ) -> ModelError | None:
        """Lower the output budget and return None if a shorter answer makes enough room.

        Otherwise, return the error with the window that the refusal names, if it names one.
        """
        estimate = request_tokens(request)
        budget = next((refusal.body[name] for name in _BUDGETS if name in refusal.body), 0)
        error.limit = limit_in(refusal.text, estimate=estimate, budget=budget)
        window = error.limit or self.model.window or self.model.info.context_window
        # The margin covers the template around each message, which our estimate leaves out. A cut
        # that is too small would be refused again.
        room = window - estimate * 5 // 4 - max(_MARGIN, window // 50)
        if budget > room > window // 4 and self._cuts < _MOST_BUDGET_CUTS:
            self._cuts += 1
            self.budget = max(_LEAST_BUDGET, room // self._cuts)
            return None
        return error


def _too_long(error: ModelError) -> ModelError:
    """Return the same error with the kind of a request that is too long."""
    length_error = ModelError(
        "context_window_exceeded", str(error), status=error.status, words=error.words
    )
    length_error.is_judged = True
    return length_error


def _has_pictures(request: ModelRequest) -> bool:
    return any(
        isinstance(part, ImagePart) for message in request.messages for part in message.parts
    )
