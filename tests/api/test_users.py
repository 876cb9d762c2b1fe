"""A user's memory over HTTP: blocks, versions, formats, entity tags, separation."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx2
import pytest

from ricordo.api import proposals, users
from ricordo.api.routing import GuardedRoute
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.memory import user_memory
from ricordo.memory.schemas import FOLDER
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction
from tests.api.conftest import Api
from tests.seams.http import get, ok, post, propose, put, refused
from tests.seams.server import ServerInThread


@pytest.fixture
def ada() -> str:
    return new_id("ada")


def test_a_first_put_creates_the_user_and_the_block(http: httpx2.Client, ada: str) -> None:
    refused(http.get(f"/users/{ada}/blocks"), 404)

    made = put(http, ada, "student", "Name: Ada\n", title="Student", message="My name")

    assert is_id(made["id"], "block")
    shown = [made[name] for name in ("label", "title", "body", "schema_ref", "pending", "policy")]
    assert shown == ["student", "Student", "Name: Ada\n", None, 0, "propose"]
    assert re.fullmatch("[0-9a-f]{40}", made["version"])
    assert get(http, ada, "student") == made
    assert ok(http.get(f"/users/{ada}/blocks")) == ok(http.get(f"/users/{ada}/blocks/")) == [made]
    # The same text again creates no version.
    assert put(http, ada, "student", "Name: Ada\n")["version"] == made["version"]
    (first,) = get(http, ada, "student/history")
    assert (first["sha"], first["message"], first["author"]) == (made["version"], "My name", ada)


def test_an_invalid_user_name_creates_no_user(http: httpx2.Client, server: ServerInThread) -> None:
    before = server.rows()
    assert "cannot be called" in refused(
        http.put("/users/%20x/blocks/student", json={"body": ""}), 400
    )
    assert "is no user" in refused(
        http.put(f"/users/{new_id('user')}/blocks/a", json={"body": ""}), 404
    )

    assert server.rows() == before


def test_a_label_may_be_a_path_but_not_a_reserved_word(http: httpx2.Client, ada: str) -> None:
    for label in ("history", "a/Diffs", "restore/b", "a/.git/b", "a//b", "a/", "%20"):
        assert "cannot be used" in refused(
            http.put(f"/users/{ada}/blocks/{label}", json={"body": ""}), 400
        ), label
    refused(http.get(f"/users/{ada}/blocks"), 404)

    made = put(http, ada, "courses/maths", "Likes proofs.")
    put(http, ada, "courses/maths/ü%3F", "Deeper.")
    assert get(http, ada, "courses/maths") == made
    assert [one["label"] for one in ok(http.get(f"/users/{ada}/blocks"))] == [
        "courses/maths",
        "courses/maths/ü?",
    ]
    assert len(get(http, ada, "courses/maths/history")) == 1
    assert (
        get(http, ada, f"courses/maths/versions/{made['version'][:7]}")["body"] == "Likes proofs."
    )


def test_a_history_is_newest_first_and_can_be_paged(http: httpx2.Client, ada: str) -> None:
    made = [
        put(http, ada, "student", f"Version {number}", message=str(number))["version"]
        for number in range(5)
    ]
    put(http, ada, "other", "Beside it")

    whole = get(http, ada, "student/history")
    assert [one["sha"] for one in whole] == made[::-1]
    assert [one["message"] for one in whole] == list("43210")
    assert get(http, ada, "student/history", limit=2) == whole[:2]
    assert get(http, ada, "student/history", limit=2, before=whole[1]["sha"]) == whole[2:4]
    assert get(http, ada, "student/history", before=made[0]) == []
    assert refused(http.get(f"/users/{ada}/blocks/student/history?limit=0"), 422)


def test_a_version_can_be_read_and_restored_also_after_a_deletion(
    http: httpx2.Client, ada: str
) -> None:
    made = put(http, ada, "student", "One", title="Student", policy="direct")
    first = made["version"]
    put(http, ada, "student", "Two")

    assert get(http, ada, f"student/versions/{first}")["body"] == "One"
    back = post(http, ada, "student/restore", sha=first[:10])
    assert (back["body"], back["version"] != first) == ("One", True)
    newest = get(http, ada, "student/history", limit=1)
    assert [one["message"] for one in newest] == [f"Restore student as of {first[:12]}"]

    ok(http.delete(f"/users/{ada}/blocks/student", params={"message": "Old"}))
    refused(http.get(f"/users/{ada}/blocks/student"), 404)
    refused(http.delete(f"/users/{ada}/blocks/student"), 404)
    gone = get(http, ada, "student/history")[0]
    assert (gone["is_deleted"], gone["message"]) == (True, "Old")
    assert get(http, ada, f"student/versions/{gone['sha']}")["body"] is None
    refused(http.post(f"/users/{ada}/blocks/student/restore", json={"sha": gone["sha"]}), 404)
    back = post(http, ada, "student/restore", sha=first, message="Again")
    assert get(http, ada, "student/history")[0]["message"] == "Again"
    assert [back[name] for name in ("id", "body", "title", "policy")] == [
        made["id"],
        "One",
        "Student",
        "direct",
    ]


def test_blame_names_the_version_that_wrote_each_line(http: httpx2.Client, ada: str) -> None:
    put(http, ada, "student", "Name: Ada\nLikes tea.", message="Begin")
    middle = put(http, ada, "student", "Name: Ada\nLikes green tea.", message="Greener")["version"]
    put(http, ada, "student", "Name: Ada\nLikes green tea.\nLives in Turin.\n", message="Moved")

    blamed = get(http, ada, "student/blame")
    messages = {one["sha"]: one["message"] for one in blamed["versions"]}
    assert [(one["number"], one["text"], messages[one["version"]]) for one in blamed["lines"]] == [
        (1, "Name: Ada", "Begin"),
        (2, "Likes green tea.", "Greener"),
        (3, "Lives in Turin.", "Moved"),
    ]
    assert get(http, ada, "student/blame", at=middle)["count"] == 2


def test_two_versions_are_compared_by_lines_and_by_words(http: httpx2.Client, ada: str) -> None:
    first = put(http, ada, "student", "Name: Ada\nLikes tea.\n")["version"]
    second = put(http, ada, "student", "Name: Ada\nLikes green tea.\n")["version"]
    third = put(http, ada, "student", "")["version"]

    seen = get(http, ada, "student/compare", **{"from": first, "to": second})
    assert (seen["from_version"], seen["to_version"]) == (first, second)
    assert "-Likes tea.\n+Likes green tea.\n" in seen["unified"]
    assert [one for one in seen["words"] if one["kind"] != "same"] == [
        {"kind": "added", "text": "green "}
    ]
    assert get(http, ada, "student/compare", to=second) == seen
    assert get(http, ada, "student/compare")["to_version"] == third
    beginning = get(http, ada, "student/compare", to=first)
    assert (beginning["from_version"], beginning["words"][0]["kind"]) == (None, "added")


def test_changing_settings_makes_no_version_and_a_new_label_makes_one(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "student.toml").write_text("[fields.name]\n")
    made = put(http, ada, "student", "One", title="Student", schema_ref="student")
    proposal = propose(http, ada, "student", "One", "Two")

    settings = {
        "title": None,
        "policy": "guarded",
        "metadata": {"n": 1},
        "limit": 50,
        "course": "maths",
    }
    changed = ok(http.patch(f"/users/{ada}/blocks/student", json=settings))
    assert {
        "schema_ref": "student",
        "version": made["version"],
        **settings,
    }.items() <= changed.items()
    after = put(http, ada, "student", "One", title=None)
    assert (after["title"], after["policy"], after["metadata"]) == (None, "guarded", {"n": 1})
    new_name = {"label": "people/me", "message": "Tidy"}
    renamed = ok(http.patch(f"/users/{ada}/blocks/student", json=new_name))
    assert get(http, ada, "people/me/history")[0]["message"] == "Tidy"
    assert (renamed["label"], renamed["pending"], renamed["version"] != made["version"]) == (
        "people/me",
        1,
        True,
    )
    assert [one["id"] for one in get(http, ada, "people/me/diffs")] == [proposal]
    assert len(get(http, ada, "people/me/history")) == 2
    refused(http.get(f"/users/{ada}/blocks/student"), 404)
    put(http, ada, "taken", "")
    refused(http.patch(f"/users/{ada}/blocks/taken", json={"label": "people/me"}), 409)
    assert "limit" in refused(http.patch(f"/users/{ada}/blocks/people/me", json={"limit": 1}), 422)
    refused(http.patch(f"/users/{ada}/blocks/people/me", json={"policy": "anarchy"}), 422)


def test_if_match_writes_only_over_the_version_that_was_read(http: httpx2.Client, ada: str) -> None:
    address = f"/users/{ada}/blocks/student"
    put(http, ada, "student", "One")
    read = http.get(address)
    etag, version = read.headers["etag"], read.json()["version"]

    changed = http.put(address, json={"body": "Two"}, headers={"if-match": etag})
    assert (changed.status_code, changed.headers["etag"] != etag) == (200, True)
    weak = f"W/{changed.headers['etag']}"
    for stale in (etag, f'"{version}"', f'{weak}, "other"', weak, "nonsense", ""):
        for method in ("PUT", "PATCH", "DELETE"):
            body = (
                {}
                if method == "DELETE"
                else {"json": {"title": "T", **({"body": "Three"} if method == "PUT" else {})}}
            )
            answer = http.request(method, address, headers={"if-match": stale}, **body)
            assert "PRECONDITION_FAILED" in refused(answer, 412)
    assert get(http, ada, "student")["body"] == "Two"
    now = f'"{changed.json()["version"]}"'
    ok(http.put(address, json={"body": "Three"}, headers={"if-match": f'"{version}", {now}'}))
    # Many clients send the version without quotes.
    bare = get(http, ada, "student")["version"]
    ok(http.put(address, json={"body": "Three"}, headers={"if-match": bare}))
    ok(http.put(address, json={"body": "Three"}, headers={"if-match": f"other, {bare}"}))
    ok(http.delete(address, headers={"if-match": "*"}))
    refused(http.put(address, json={"body": ""}, headers={"if-match": "*"}), 412)
    ok(http.put(address, json={"body": "Four"}))
    etag = http.get(address).headers["etag"]
    ok(http.patch(address, json={"title": "Mine"}))
    # A change of settings changes the tag too.
    refused(http.put(address, json={"body": "", "title": "T"}, headers={"if-match": etag}), 412)


def test_if_none_match_creates_only_new_blocks_and_answers_304_for_known_ones(
    http: httpx2.Client, ada: str
) -> None:
    address, only_new = f"/users/{ada}/blocks/student", {"if-none-match": "*"}
    ok(http.put(address, json={"body": "One"}, headers=only_new))
    refused(http.put(address, json={"body": "Two"}, headers=only_new), 412)

    etag = http.get(address).headers["etag"]
    refused(http.put(address, json={"body": "Two"}, headers={"if-none-match": f"W/{etag}"}), 412)
    assert (
        http.put(address, json={"body": "One"}, headers={"if-none-match": '"other"'}).headers[
            "etag"
        ]
        == etag
    )
    spared = http.get(address, headers={"if-none-match": f'"other", W/{etag}'})
    assert (spared.status_code, spared.content, spared.headers["etag"]) == (304, b"", etag)
    propose(http, ada, "student", "One", "Two")
    # Waiting proposals are part of the response.
    assert http.get(address, headers={"if-none-match": etag}).json()["pending"] == 1


def test_a_version_in_the_body_merges_other_changes_or_returns_the_conflict(
    http: httpx2.Client, ada: str
) -> None:
    base = "\n".join(f"Line {number}" for number in range(9))
    version = put(http, ada, "student", base)["version"]
    theirs = put(http, ada, "student", base.replace("Line 0", "Top"))

    merged = put(http, ada, "student", base.replace("Line 8", "Bottom"), version=version)
    assert merged["body"] == base.replace("Line 0", "Top").replace("Line 8", "Bottom")

    mine = base.replace("Line 0", "Roof")
    answer = http.put(f"/users/{ada}/blocks/student", json={"body": mine, "version": version})
    assert "changed since you read it" in refused(answer, 409)
    conflict = answer.json()["conflict"]
    assert (conflict["base"], conflict["ours"], conflict["theirs"]) == (base, merged["body"], mine)
    assert theirs["version"] != merged["version"]
    assert put(http, ada, "student", "Settled", version=merged["version"])["body"] == "Settled"


UNREADABLE: list[tuple[bytes, str, int, str]] = [
    (b"{", "application/json", 422, "JSON decode error"),
    (b"{}", "application/json", 422, "body"),
    (b'{"body": "a\\u0000"}', "application/json", 422, "NUL"),
    (b"Text", "text/html", 422, "Use application/json"),
    (b'{"body": "", "limit": 0}', "application/json", 400, "limit"),
]


def test_an_unreadable_or_conditional_request_is_refused_and_creates_nothing(
    api: Api, ada: str
) -> None:
    before = api.server.rows()
    address = f"/users/{ada}/blocks/student"
    for content, media_type, status, said in UNREADABLE:
        answer = api.http.put(address, content=content, headers={"content-type": media_type})
        assert said in refused(answer, status), content
    refused(api.http.put(address, json={"body": ""}, headers={"if-match": "*"}), 412)
    assert api.server.rows() == before


@dataclass(frozen=True)
class Known:
    """Data of one user: names that exist."""

    user_id: str
    label: str
    sha: str
    diff_id: str
    run_id: str


CANARY = "kingfisher"


@pytest.fixture(scope="module")
def two(running_server: ServerInThread, running_http: httpx2.Client) -> tuple[Known, Known]:
    return _known(running_server, running_http, "carol", "tea"), _known(
        running_server, running_http, "bob", CANARY
    )


def _known(server: ServerInThread, http: httpx2.Client, user: str, secret: str) -> Known:
    label, run_id = f"{secret}/notes", new_id("run")
    put(http, user, label, f"The {secret} sings.")

    def work(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, Scope(), user)
        block = user_memory.require(tx, owned, label)
        versions.lock(tx, owned.chain.id)
        metadata = ChangeMetadata(owned.owner, f"More of {secret}", run_id=run_id)
        blocks.update(
            tx, block, replace(block, value=f"The {secret} sings.\nIt is blue."), metadata
        )

    server.write(work)
    sha = get(http, user, label)["version"]
    return Known(user, label, sha, propose(http, user, label, "blue", f"{secret} blue"), run_id)


ROUTES = sorted(
    (method, route.path)
    for router in (proposals.router, users.router)
    for route in router.routes
    if isinstance(route, GuardedRoute) and route.include_in_schema
    for method in route.methods
)
NOWHERE = Known(
    "nobody", "nothing", "0" * 40, "proposal-00000000-0000-4000-8000-000000000000", "run-nothing"
)


def routes_with_wrong_names() -> Iterator[tuple[str, str, str, str]]:
    """Yield every route with one wrong name: one that does not exist, or one of another user."""
    for method, path in ROUTES:
        in_body = (
            ["body"]
            if path.endswith(("restore", "approve", "reject")) and "{diff_id}" not in path
            else []
        )
        for name in re.findall(r"\{(\w+)", path) + in_body:
            if method == "PUT" and name in ("user_id", "label"):
                continue  # such a PUT would create the object
            for whose in ("nobody's", "another's"):
                if (name, whose) != ("user_id", "another's"):
                    yield method, path, name, whose


def test_a_wrong_name_is_not_found_and_reveals_nothing_of_others(
    http: httpx2.Client, two: tuple[Known, Known]
) -> None:
    """Every route is called with each name wrong in each way.

    The response is 404, tells nothing of another user's data, and changes nothing.
    """
    carol, bob = two
    before = [_visible_data(http, one) for one in two]
    for method, path, name, whose in routes_with_wrong_names():
        case = f"{method} {path} {whose} {name}"
        other = asdict(NOWHERE if whose == "nobody's" else bob)
        values = asdict(carol) | ({name: other[name]} if name != "body" else {})
        body: dict[str, Any] = (
            {"title": "T"} if method == "PATCH" else {"body": ""} if method == "PUT" else {}
        )
        if path.endswith("/restore"):
            body = {"sha": other["sha"] if name == "body" else carol.sha}
        elif path.endswith("/propose"):
            body = {"old_string": "blue", "new_string": "red", "reasoning": ""}
        elif path.endswith(("/diffs/approve", "/diffs/reject")):
            body = {"ids": [other["diff_id"]]}
        answer = http.request(
            method, _filled(path, values), **({} if method in ("GET", "DELETE") else {"json": body})
        )
        if path.endswith(("/diffs/approve", "/diffs/reject")) and name == "body":
            assert [one["status"] for one in ok(answer)] == ["failed"], case
        else:
            assert answer.status_code == 404, (case, answer.text)
        told = answer.text
        for value in other.values():
            told = told.replace(value, "")  # ids of the request may be repeated
        assert CANARY not in told, case
    assert [_visible_data(http, one) for one in two] == before


def test_the_right_names_are_found(http: httpx2.Client, two: tuple[Known, Known]) -> None:
    """Without this the test of the wrong names would prove nothing."""
    carol, _ = two
    for method, path in ROUTES:
        if method == "GET":
            answer = http.get(_filled(path, asdict(carol)))
            assert answer.status_code == 200, (path, answer.text)


def _filled(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", lambda match: values[match[1]], path)


def _visible_data(http: httpx2.Client, known: Known) -> Any:
    diffs = ok(http.get(f"/users/{known.user_id}/diffs", params={"status": "all"}))
    return (
        ok(http.get(f"/users/{known.user_id}/blocks")),
        get(http, known.user_id, f"{known.label}/history"),
        diffs,
    )


def test_labels_that_differ_only_in_capitals_are_refused_in_a_users_memory(
    http: httpx2.Client,
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Ada")
    put(http, user, "Übung", "Latin")
    for label in ("Human", "HUMAN", "u\u0308bung"):
        answer = http.put(f"/users/{user}/blocks/{label}", json={"body": "Eve"})
        assert "only in capitals or invisible characters" in refused(answer, 409)
    put(http, user, "goals", "Rest")
    assert "only in capitals" in refused(
        http.patch(f"/users/{user}/blocks/goals", json={"label": "HuMan"}), 409
    )
    # A change of case in its name is not a collision, and blocks of another owner never collide.
    assert (
        ok(http.patch(f"/users/{user}/blocks/human", json={"label": "Human"}))["label"] == "Human"
    )
    put(http, new_id("bob"), "human", "Bob")
