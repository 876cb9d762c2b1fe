"""Hostile values in each field and query parameter of working requests.

If a value is accepted, the object and its lists are read again; for agents and conversations a turn
runs. If the server stored something that it cannot read, these requests fail.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2

from ricordo.memory.schemas import FOLDER
from tests.seams.people import OPERATOR, World, bearer, world_on
from tests.seams.routes import TEXT, Cell, cells_of, least
from tests.support.fuzz import HOSTILE, OUTSIDE, as_json, as_text, stream_faults

Wire = dict[str, Any]
_DEPTH = 4  # Depth of nested fields; deeper levels of the documents repeat.
# After a change of these, a turn has to work as before.
_TURNS = ("/v1/agents/{agent_id}", "/v1/conversations/{conversation_id}", "/v1/blocks/")


@dataclass(frozen=True)
class Place:
    """A field or a parameter of a route, and the request with a value in it."""

    cell: Cell
    name: str
    request: Callable[[Any], Wire]


@dataclass
class SweepReport:
    """Counts of sent and accepted values, and the responses that must never occur."""

    statuses: Counter[int] = field(default_factory=Counter)
    places: set[tuple[str, str, str]] = field(default_factory=set)
    routes: set[tuple[str, str]] = field(default_factory=set)
    accepted: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        asked = (
            f"{self.statuses.total()} requests to {len(self.places)} fields of {len(self.routes)} "
            "routes"
        )
        return "\n".join(
            [
                f"{asked}, {self.accepted} accepted: {dict(sorted(self.statuses.items()))}",
                *self.faults,
            ]
        )


class Sweep:
    """Sends the requests of one world."""

    def __init__(self, world: World, report: SweepReport) -> None:
        self._world, self._report = world, report
        self._values = {**world.own, **world.shared, "schema_name": "student"}
        folder = world.server.settings.data_dir / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / "student.toml").write_text("[fields.name]\n")
        self._document = world.server.app.openapi()
        self._reads = [path for path, item in self._document["paths"].items() if "get" in item]

    def cells(self) -> list[Cell]:
        """Return the documented routes.

        Routes that delete come last, and those for agents and users at the very end.
        """
        found = [cell for cell in cells_of(self._world.server.app) if self._operation(cell)]
        asked = [
            cell for cell in found if not (cell.method != "GET" and cell.path.startswith(OUTSIDE))
        ]
        assert all(_is_filled(cell.path, self._values) for cell in asked)
        return sorted(asked, key=_order)

    def places(self, cell: Cell) -> list[Place]:
        operation, parts = self._operation(cell), cell.parts(self._values)
        found = []
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query":
                found.append(
                    Place(
                        cell, parameter["name"], partial(_with_parameter, parts, parameter["name"])
                    )
                )
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            found.append(Place(cell, "", partial(_with_body, parts, lambda value: value)))
            for name, body in self._fields(
                content["application/json"]["schema"], parts.get("json"), _DEPTH
            ):
                found.append(Place(cell, name, partial(_with_body, parts, body)))
        return found

    def ask(self, cell: Cell) -> None:
        """Send the route's request as it is."""
        self._send(cell, cell.parts(self._values))

    def try_value(self, place: Place, value: Any) -> None:
        """Send a request with this value; if it is accepted, read all that it may have changed."""
        answer = self._send(place.cell, place.request(value))
        self._report.places.add((place.cell.method, place.cell.path, place.name))
        if answer is None or not answer.is_success:
            return
        self._report.accepted += 1
        if place.cell.method != "GET":
            where = (
                f"after {place.cell.method} {place.cell.path} with {value!r:.200} as {place.name}: "
            )
            self.read_again(place.cell, answer, where)

    def read_again(self, cell: Cell, answer: httpx2.Response, where: str) -> None:
        made = answer.json() if answer.headers.get("content-type", "") == "application/json" else {}
        values = (
            {**self._values, "made": made["id"]}
            if isinstance(made, dict) and "id" in made
            else self._values
        )
        for path in self._reads:
            if path := _related(cell, path, values):
                self._send(Cell("GET", path, ()), Cell("GET", path, ()).parts(values), where)
        if cell.path.startswith(_TURNS) and cell.method in ("PATCH", "POST"):
            said = Cell("POST", "/v1/agents/{agent_id}/messages", ())
            self._send(said, {**said.parts(self._values), "json": {"messages": TEXT}}, where)

    def read_all(self) -> None:
        """Send all requests that only read."""
        for path in self._reads:
            if _is_filled(path, self._values):
                self._send(
                    Cell("GET", path, ()), Cell("GET", path, ()).parts(self._values), "in the end: "
                )

    def _operation(self, cell: Cell) -> Wire:
        item = self._document["paths"].get(cell.path.replace(":path}", "}"), {})
        operation: Wire = item.get(cell.method.lower(), {})
        return operation

    def _send(self, cell: Cell, parts: Wire, where: str = "") -> httpx2.Response | None:
        if "json" in parts:
            parts = {**parts, "content": as_json(parts["json"])}
            del parts["json"]
        query = urlencode(parts.pop("params"), doseq=True, errors="surrogatepass")
        # Only users decide on their proposals.
        key = self._world.ada if "/diffs/" in cell.path else OPERATOR
        url, headers = (
            f"{parts.pop('url')}?{query}",
            {**bearer(key), "content-type": "application/json"},
        )
        try:
            answer = self._world.http.request(**parts, url=url, headers=headers)
        except httpx2.InvalidURL:
            return None  # longer than the client sends
        except httpx2.HTTPError as error:
            self._note(cell, parts, f"{where}{url[:200]}: {error!r}")
            return None
        self._report.statuses[answer.status_code] += 1
        if not where:
            self._report.routes.add((cell.method, cell.path))
        for fault in self._world.server.provoked():
            self._note(cell, parts, f"{where}{fault}")
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            for fault in stream_faults(answer.text, cell.path):
                self._note(cell, parts, f"{where}{fault}")
        return answer

    def _note(self, cell: Cell, parts: Wire, fault: str) -> None:
        known = [
            one for one in self._report.faults if one.startswith(f"{cell.method} {cell.path}:")
        ]
        if len(known) < 5:
            sent = f"\n    {parts.get('content', b'')[:400]!r}"
            self._report.faults.append(f"{cell.method} {cell.path}: {fault[:800]}{sent}")

    def _fields(
        self, schema: Wire, base: Any, depth: int
    ) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Return a schema's fields, each with the value changed in that field alone."""
        if "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        for one in schema.get("anyOf", schema.get("oneOf", ())):
            yield from self._fields(one, base, depth)
        if depth == 0:
            return
        if properties := schema.get("properties"):
            names = set(schema.get("required", ()))
            if (
                not isinstance(base, dict)
                or not names <= base.keys()
                or not base.keys() <= properties.keys()
            ):
                base = least(schema, self._document)
            for name, inner in properties.items():
                yield name, partial(_with_field, base, name)
                for path, change in self._fields(inner, base.get(name), depth - 1):
                    yield (
                        f"{name}.{path}",
                        partial(_with_change, partial(_with_field, base, name), change),
                    )
        elif "items" in schema:
            first = base[0] if isinstance(base, list) and base else None
            yield "[]", lambda value: [value]
            for path, change in self._fields(schema["items"], first, depth - 1):
                yield f"[].{path}", partial(_with_change, lambda value: [value], change)


def _with_field(base: Wire, name: str, value: Any) -> Wire:
    return {**base, name: value}


def _with_change(outer: Callable[[Any], Any], inner: Callable[[Any], Any], value: Any) -> Any:
    return outer(inner(value))


def _with_parameter(parts: Wire, name: str, value: Any) -> Wire:
    values = value if isinstance(value, list) else [value]
    return {**parts, "params": {**parts["params"], name: [as_text(one) for one in values]}}


def _with_body(parts: Wire, body: Callable[[Any], Any], value: Any) -> Wire:
    return {**parts, "json": body(value)}


def _order(cell: Cell) -> tuple[Any, ...]:
    if cell.method != "DELETE":
        return False, cell.path.count("/"), cell.path, cell.method
    return (
        True,
        -cell.path.count("{"),
        cell.path.startswith("/users"),
        cell.path.startswith("/v1/agents"),
        cell.path,
    )


def _is_filled(path: str, values: Mapping[str, str]) -> bool:
    return set(re.findall(r"\{(\w+)", path)) <= values.keys()


def _related(cell: Cell, read: str, values: Mapping[str, str]) -> str | None:
    """Return the path to read after a request: the object, its container, or the created object."""
    written = cell.path.replace(":path}", "}").rstrip("/")
    if written == read.rstrip("/") or (
        read.rstrip("/") and written.startswith(read.rstrip("/") + "/")
    ):
        return read if _is_filled(read, values) else None
    made = re.fullmatch(re.escape(written) + r"/\{\w+\}", read)
    return f"{read[: read.rindex('{')]}{{made}}" if made and "made" in values else None


def sweep(folder: Path, number: int, share: float = 1, database: str = "sqlite") -> SweepReport:
    """Try this share of all values in all fields and parameters.

    Each route that writes gets a separate world.
    """
    report = SweepReport()
    with world_on(folder / "reads", database) as world:
        swept = Sweep(world, report)
        cells = swept.cells()
        for cell in cells:
            if cell.method == "GET":
                _try_all(swept, cell, random.Random(number), share)  # noqa: S311
    for place, cell in enumerate(one for one in cells if one.method != "GET"):
        with world_on(folder / str(place), database) as world:
            swept = Sweep(world, report)
            _try_all(swept, cell, random.Random(number), share)  # noqa: S311
            swept.read_all()
    return report


def _try_all(swept: Sweep, cell: Cell, chance: random.Random, share: float) -> None:
    tried = [
        (place, value)
        for place in swept.places(cell)
        for value in HOSTILE
        if chance.random() < share
    ]
    chance.shuffle(tried)
    for place, value in tried:
        swept.try_value(place, value)
    swept.ask(cell)


def sample(
    folder: Path, number: int, most: int, every: int, database: str = "sqlite"
) -> SweepReport:
    """Try some values of some routes in one world.

    Each field of routes that write also gets the empty text.
    """
    report, chance = SweepReport(), random.Random(number)  # noqa: S311
    with world_on(folder, database) as world:
        swept = Sweep(world, report)
        for cell in swept.cells()[::every]:
            places = swept.places(cell)
            if not places:
                swept.ask(cell)
            for place in places if cell.method in ("PATCH", "PUT") else ():
                if place.name.isidentifier():
                    swept.try_value(place, "")
            for place in chance.sample(places, min(most, len(places))):
                swept.try_value(place, chance.choice(HOSTILE))
        swept.read_all()
    return report
