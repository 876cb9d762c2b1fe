"""An object that a caller's list hides cannot be read by its id either."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage import jobs
from tests.seams.people import EVERY_USERS, OPERATOR, World, open_world

# Fields that name an object in the path, if it is neither the parameter's name nor `id`.
NAMES = {"task_name": "name", "block_label": "label", "schema_name": "name"}
MOST_OF_A_LIST = 4


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as world:
        job = Job("test.none", LOCAL_ORGANIZATION, {}, not_before=2**52)
        world.server.write(lambda tx: jobs.add(tx, job))
        yield world


def names_in(answer: httpx2.Response, parameter: str) -> list[str]:
    """Return the listed objects as the path's parameter names them; [] for a refusal."""
    rows: Any = answer.json() if answer.status_code == 200 else []
    if isinstance(rows, dict):
        rows = next((value for value in rows.values() if isinstance(value, list)), [])
    fields = (parameter, NAMES.get(parameter, "id"))
    names = (next((row[name] for name in fields if row.get(name)), None) for row in rows)
    return [str(name) for name in names if name]


def test_what_a_list_hides_is_not_found_by_its_id(world: World) -> None:
    paths = world.ask(OPERATOR, "GET", "/openapi.json")["paths"]
    gets = [path for path, methods in paths.items() if "get" in methods]
    callers = {
        "operator": OPERATOR,
        "service": world.key("shop", "service"),
        "developer": world.key("dora", "developer"),
        "eve": world.key("eve", scopes=EVERY_USERS),
    }
    known = {**world.own, **world.shared}
    faults = []
    hidden = set()
    for path in gets:
        single = re.fullmatch(r"(.*)/\{(\w+)\}", path)
        lists = [] if single is None else {single[1], f"{single[1]}/"} & {*gets}
        parameters = re.findall(r"\{(\w+)\}", single[1]) if single else []
        if single is None or not lists or not known.keys() >= {*parameters}:
            continue
        home = re.sub(r"\{(\w+)\}", lambda name: known[name[1]], min(lists))
        seers: dict[str, set[str]] = defaultdict(set)
        for caller, key in callers.items():
            for name in names_in(world.send(key, "GET", home, params={"limit": 100}), single[2]):
                seers[name].add(caller)
        # Those that fewest callers see come first.
        for name in sorted(seers, key=lambda name, seers=seers: len(seers[name]))[:MOST_OF_A_LIST]:
            seen_by = seers[name]
            hidden |= {path for _ in callers.keys() - seen_by}
            faults += [
                (path, name, caller, answer.status_code)
                for caller in callers
                if (answer := world.send(callers[caller], "GET", f"{home.rstrip('/')}/{name}"))
                and (answer.status_code == 200) != (caller in seen_by)
            ]
    assert faults == []
    assert {"/v1/jobs/{job_id}", "/v1/runs/{run_id}", "/v1/keys/{key_id}"} <= hidden
