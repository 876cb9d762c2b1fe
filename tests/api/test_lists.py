"""How many statements a page of each list takes, with as many rows as fit on it: four at most, whoever asks."""

from pathlib import Path
from typing import Any

from bench.lists import lists
from tests.seams.http import ok
from tests.seams.server import MODEL, serving
from tests.seams.stores import count_statements

MOST = 4
# With the caller's key looked up, which is one.
WITH_KEY = MOST + 1


def test_a_page_of_each_list_takes_few_statements(tmp_path: Path) -> None:
    operator = {"authorization": "Bearer the-operator"}
    with serving(tmp_path, api_key="the-operator") as server, server.http(headers=operator) as http:
        blocks: list[Any] = [{"label": "human", "value": "x"}, {"label": "persona", "value": "y"}]
        made = [ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": blocks}))["id"] for _ in range(12)]
        for agent in made:
            for user in ("ada", "bob"):
                sent = {"input": f"I am {user}."}
                ok(http.post(f"/v1/agents/{agent}/messages", json=sent, headers={"x-ricordo-user": user}))
        document = http.get("/openapi.json").json()
        for key, most in (
            ("the-operator", MOST),
            (server.key("ada"), WITH_KEY),
            (server.key("dora", "admin"), WITH_KEY),
        ):
            found = {}
            for path in lists(document):
                headers = {"authorization": f"Bearer {key}"}
                asked = path.replace("{agent_id}", made[0])
                http.get(asked, params={"limit": 10}, headers=headers)  # the first may read what stays in memory
                with count_statements(server.runtime.store) as counted:  # type: ignore[arg-type]
                    answer = http.get(asked, params={"limit": 10}, headers=headers)
                if answer.status_code == 200:
                    found[path] = len(counted.statements)
            assert len(found) > 20
            assert {path: count for path, count in found.items() if count > most} == {}
