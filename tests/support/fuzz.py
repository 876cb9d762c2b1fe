"""Requests made by schemathesis from the OpenAPI document, with real ids.

Hostile values that schemathesis does not try are added. Each server of a campaign has a separate
world (`tests/seams/people.py`), and the requests name, change and delete its data.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required
from urllib.parse import quote, urlencode

import httpx2
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError, with_config
from schemathesis import Case, GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.schemas import APIOperation
from typing_extensions import TypedDict

from ricordo.api.models.messages import AnyMessage
from ricordo.api.models.runs import StopReasonResponse, UsageResponse
from tests.seams.people import OPERATOR, World, bearer, world_on

# The number of requests to one world. After more requests little of the world would be left.
ONE_WORLD = 1000
# The share of requests that come before any request that deletes objects of others.
_LAST = 0.9
HOSTILE: tuple[Any, ...] = (
    *(
        "",
        "\0",
        "a\0b",
        "\ud800",
        "x\udfff",
        "\uffff",
        "x" * 5000,
        "../..",
        "a/b",
        "a%2Fb",
        "%00",
        " ",
        "\n",
        "null",
    ),
    *(
        "0001-01-01",
        "9999-12-31",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
        "0000-00-00",
        "1e400",
    ),
    *("\u202etxet \u05e9\u05dc\u05d5\u05dd", "2026-02-30"),
    *(
        0,
        -1,
        2**31,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        -float("inf"),
    ),
    *(None, True, [], {}, [[]], [None], {"": ""}, {"\0": "\0"}, ["x"] * 70, "١٢", "١", "²"),
)
# These routes are not called: they would call a foreign address, or wait for one.
OUTSIDE = ("/v1/providers/", "/users/{user_id}/remotes", "/login")
# Most later requests need what these routes delete or disable.
_FATAL = {
    "DELETE": (
        "{agent_id}",
        "{conversation_id}",
        "{user_id}",
        "{user}",
        "{organization_id}",
        "{block_id}",
        "{archive_id}",
    ),
    "PATCH": ("{user}",),
}


@dataclass
class FuzzReport:
    """The requests of a campaign, and the responses that must never occur."""

    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return self.statuses.total()

    def __str__(self) -> str:
        found = "\n".join(f"{times} times: {fault}" for fault, times in self.faults.most_common())
        return (
            f"{self.requests} requests to {len(self.routes)} routes: "
            f"{dict(sorted(self.statuses.items()))}\n{found}"
        )


class _Requests:
    """Sends cases to one world, with its ids for some values and hostile values for others."""

    def __init__(self, world: World, total: int, number: int, report: FuzzReport) -> None:
        self.world, self._total, self._number, self._report = world, total, number, report
        self._known = {**world.own, **world.shared}
        self._known |= {"before": self._known["message_id"], "after": self._known["run_id"]}
        self._sent = 0
        self._random = self.random()
        self._http = world.server.http()

    @property
    def are_done(self) -> bool:
        return self._sent >= self._total

    def random(self) -> random.Random:
        """Return the random generator of the next request; it is repeatable."""
        return random.Random(f"{self._number} {self._sent}")  # noqa: S311

    def close(self) -> None:
        self._http.close()

    def send(self, case: Case) -> None:
        """Send the case with some values changed, and record the faults of the response."""
        self._random, self._sent = self.random(), self._sent + 1
        try:
            request = self._request(case)
        except httpx2.InvalidURL:
            self._total += 1  # the client refuses to send such a long address
            return
        label = case.operation.label
        self._report.routes[label] += 1
        try:
            answer = self._http.send(request)
        except httpx2.HTTPError as error:
            self._report.statuses[0] += 1
            self._note(label, request, repr(error))
            return
        self._report.statuses[answer.status_code] += 1
        for fault in self.world.server.provoked():
            self._note(label, request, fault.partition(": ")[2])
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            # Documented as text; schemathesis would expect a schema of each event.
            for fault in stream_faults(answer.text, case.operation.path):
                self._note(label, request, fault)
            return
        try:
            case.operation.validate_response(answer)
        except (Failure, FailureGroup) as failure:
            found = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
            for one in found:
                self._note(label, request, f"{one.title}: {one}")

    def _note(self, label: str, request: httpx2.Request, fault: str) -> None:
        known = sum(
            self._report.faults[one]
            for one in self._report.faults
            if one.startswith(f"{label}: {fault[:60]}")
        )
        if known < 3:
            sent = f"{request.url} {request.content[:400]!r}"
            self._report.faults[f"{label}: {fault[:500]}\n    {sent}"] += 1

    def _request(self, case: Case) -> httpx2.Request:
        path = case.path
        is_safe = not path.endswith(_FATAL.get(case.method.upper(), ()))
        may_name = is_safe or self._sent > _LAST * self._total
        for name, value in (case.path_parameters or {}).items():
            given = self._known.get(name) if may_name and self._random.random() < 0.8 else None
            filled = quote(
                as_text(self._changed(value) if given is None else given),
                safe="",
                errors="surrogatepass",
            )
            # An empty value would select another route.
            path = path.replace(f"{{{name}}}", filled or "%20")
        query = [
            (name, as_text(one))
            for name, value in (case.query or {}).items()
            for one in self._list(name, value)
        ]
        url = f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path
        content, headers = self._body(case), self._headers(case)
        return self._http.build_request(case.method, url, content=content, headers=headers)

    def _list(self, name: str, value: Any) -> list[Any]:
        """Return the values of a query parameter: one, several, or one value twice."""
        values = value if isinstance(value, list) else [value]
        values = [self._changed(self._named(name, one)) for one in values]
        return values * 2 if self._random.random() < 0.05 else values

    def _named(self, name: str, value: Any) -> Any:
        """Return the id of an existing object, if the name asks for one."""
        known = self._known.get(name, self._known.get(name.removesuffix("s")))
        return (
            known
            if known is not None and isinstance(value, str) and self._random.random() < 0.7
            else value
        )

    def _changed(self, value: Any) -> Any:
        return self._random.choice(HOSTILE) if self._random.random() < 0.1 else value

    def _body(self, case: Case) -> bytes | None:
        if isinstance(case.body, NotSet):
            return None
        if isinstance(case.body, bytes):
            return case.body
        return as_json(self._changed_body("", case.body))

    def _changed_body(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._changed_body(key, one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._changed_body(name, one) for one in value]
        return self._changed(self._named(name, value))

    def _headers(self, case: Case) -> dict[str, str]:
        """Return the headers of the operator, of a user, or of no user."""
        (key,) = self._random.choices([OPERATOR, self.world.ada, None], [0.6, 0.3, 0.1])
        headers = bearer(key) if key else {}
        if key == OPERATOR and self._random.random() < 0.1:
            headers["x-ricordo-user"] = self._random.choice(["ada", "fay", "new", "x" * 300])
        if not isinstance(case.body, NotSet):
            headers["content-type"] = case.media_type or "application/json"
        return headers


class _NumberedStopReason(StopReasonResponse):
    seq_id: int | None = None


class _NumberedUsage(UsageResponse):
    seq_id: int | None = None


class _Ping(TypedDict):
    message_type: Literal["ping"]
    id: str
    date: str
    run_id: str
    seq_id: int | None


class _ErrorMessage(TypedDict):
    message_type: Literal["error_message"]
    run_id: str
    error_type: str
    message: str
    detail: str | None
    seq_id: int | None


@with_config(ConfigDict(extra="forbid"))
class _ChatEvent(TypedDict, total=False):
    """An event of a tutor's chat, as docs/tutor/courses.md describes it."""

    type: Required[Literal["status", "tool_call", "reasoning", "message", "error", "done"]]
    content: str
    conversation_id: str
    run_id: str | None
    name: str
    status: str
    message: str
    kind: str
    url: str
    id: str


@with_config(ConfigDict(extra="allow"))
class _AgUiEvent(TypedDict):
    """An event of an agent for a user interface with AG-UI; its fields depend on its type."""

    type: Annotated[
        str,
        StringConstraints(pattern=r"^(RUN|STATE|TEXT_MESSAGE|REASONING|TOOL_CALL)_[A-Z_]+$"),
    ]


_OURS: TypeAdapter[Any] = TypeAdapter(
    AnyMessage | _NumberedStopReason | _NumberedUsage | _Ping | _ErrorMessage
)
# For each route: the type of its events, the lines that name events, and the data of the last line.
_STREAMED: Mapping[str, tuple[TypeAdapter[Any], str, str]] = {
    "/chat/stream": (TypeAdapter(_ChatEvent), r"(: ping)?", r'data: \{"type":"done",.*\}\n\n'),
    "/v1/agents/{agent_id}/ag-ui": (
        TypeAdapter(_AgUiEvent),
        r"(: ping)?",
        r'data: \{"type":"RUN_(FINISHED|ERROR)",.*\}\n\n',
    ),
    "/v1/chat/completions": (TypeAdapter(ChatCompletionChunk), r"(: ping)?", r"data: \[DONE\]\n\n"),
    "/v1/responses": (
        TypeAdapter(ResponseStreamEvent),
        r"(: ping|event: response\.[a-z_.]+)?",
        r'data: \{"type":"response\.(completed|incomplete|failed)",.*\}\n\n',
    ),
}
_DONE = "data: [DONE]\n\n"


def stream_faults(body: str, path: str = "") -> list[str]:
    """Return the faults of server-sent events.

    These are invalid lines, undocumented events, or a missing end.
    """
    # A voice route also answers in OpenAI's format.
    known = path.replace("/v1/voice-beta/{agent_id}/", "/v1/")
    kind, names, end = _STREAMED.get(known, (_OURS, "(event: error)?", re.escape(_DONE)))
    last = body[body.rfind("data: ") :]
    faults = [] if re.fullmatch(end, last) else [f"The stream ends with {body[-100:]!r}"]
    for line in body.removesuffix(_DONE).split("\n"):
        if line.startswith("data: "):
            try:
                kind.validate_json(line.removeprefix("data: "), strict=True)
            except ValidationError as error:
                faults.append(f"A stream has {line[:300]!r}: {error.errors()[0]['msg']}")
        elif not re.fullmatch(names, line):
            faults.append(f"A stream has the line {line[:300]!r}")
    return faults


def as_json(value: Any) -> bytes:
    """Return a value as a careless client writes it.

    Halves of surrogate pairs are escaped, NaN and Infinity are written by name.
    """
    return json.dumps(value, default=str).encode()


def as_text(value: Any) -> str:
    """Return a value as it is in a query or a path."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


def fuzz(folder: Path, requests: int, number: int, database: str = "sqlite") -> FuzzReport:
    """Send requests to servers on this database; equal numbers give equal requests."""
    report = FuzzReport()
    for place in range(0, requests, ONE_WORLD):
        with world_on(folder / str(place), database) as world:
            sender = _Requests(world, min(ONE_WORLD, requests - place), number + place, report)
            try:
                _fuzz_one(sender)
            finally:
                sender.close()
    return report


def _fuzz_one(requests: _Requests) -> None:
    schema = schemathesis.openapi.from_dict(requests.world.server.app.openapi())
    operations = [found.ok() for found in schema.get_all_operations()]
    asked = [
        one for one in operations if not one.path.startswith(OUTSIDE) or one.method.upper() == "GET"
    ]
    while not requests.are_done:
        requests.random().shuffle(asked)
        for operation in asked:
            if requests.are_done:
                return
            _send_some(_cases_of(operation), requests)


@cache  # In a long campaign each operation is repeated.
def _cases_of(operation: APIOperation) -> st.SearchStrategy[Case]:
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    return st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])


def _send_some(cases: st.SearchStrategy[Case], requests: _Requests) -> None:
    @seed(requests.random().getrandbits(32))
    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def send(case: Case) -> None:
        if not requests.are_done:
            requests.send(case)

    send()
