"""A user's blocks over HTTP in Markdown and in TOML."""

import httpx2
import pytest

from ricordo.domain.block_format import BlockFormat, ParsedBlock
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.features.typed_memory.formats import service
from ricordo.memory import user_memory
from ricordo.memory.schemas import FOLDER
from ricordo.storage.engine.store import Transaction
from tests.seams.http import get, ok, put, refused
from tests.seams.server import ServerInThread


@pytest.fixture
def ada() -> str:
    return new_id("ada")


def test_a_block_can_be_read_and_written_as_markdown_and_toml(
    http: httpx2.Client, ada: str
) -> None:
    put(http, ada, "student", "## Name\n\nAda")
    address = f"/users/{ada}/blocks/student"

    markdown = http.get(address, params={"format": "markdown"})
    assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
    assert markdown.text == "---\nblock: student\n---\n## Name\n\nAda\n"
    sent = markdown.text.replace("Ada", "Ada Lovelace").encode()
    headers = {"content-type": "text/markdown; charset=utf-8", "if-match": markdown.headers["etag"]}
    changed = ok(http.put(address, content=sent, headers=headers, params={"message": "By hand"}))
    assert changed["body"] == "## Name\n\nAda Lovelace"
    assert get(http, ada, "student/history")[0]["message"] == "By hand"

    toml = http.get(address, params={"format": "toml"})
    assert toml.headers["content-type"] == "application/toml; charset=utf-8"
    again = ok(
        http.put(address, content=toml.content, headers={"content-type": "application/toml"})
    )
    assert again["version"] == changed["version"]


def test_a_block_can_be_read_in_each_format_of_a_plugin(
    http: httpx2.Client, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    org = BlockFormat(
        "org",
        "text/x-org",
        lambda label, text, _schema: f"* {label}\n{text}",
        lambda text, _schema: ParsedBlock(None, text.partition("\n")[2]),
    )
    monkeypatch.setattr(service, "FORMATS", (*service.FORMATS, org))
    address = f"/users/{ada}/blocks/student"
    ok(http.put(address, content=b"* student\nAda", headers={"content-type": "text/x-org"}))

    shown = http.get(address, params={"format": "org"})

    assert shown.headers["content-type"] == "text/x-org; charset=utf-8"
    assert shown.text == "* student\nAda"
    unknown = http.get(address, params={"format": "rtf"})
    assert refused(unknown, 422).endswith("Use json or markdown or toml or org.")


def test_a_block_with_a_schema_has_fields_and_faults_with_lines(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "pupil.toml").write_text(
        '[fields.name]\nrequired = true\n[fields.likes]\nkind = "list"\n'
    )
    put(http, ada, "student", "", schema_ref="pupil")
    address, toml = f"/users/{ada}/blocks/student", {"content-type": "application/toml"}

    ok(http.put(address, content=b'name = "Ada"\nlikes = ["tea", "proofs"]\n', headers=toml))

    assert get(http, ada, "student")["body"].split() == [
        "##",
        "Name",
        "Ada",
        "##",
        "Likes",
        "-",
        "tea",
        "-",
        "proofs",
    ]
    assert 'likes = ["tea", "proofs"]' in http.get(address, params={"format": "toml"}).text
    assert "Line 2" in refused(
        http.put(address, content=b'name = "Ada"\nlikes = 5\n', headers=toml), 400
    )
    assert "pupil" in refused(http.patch(address, json={"schema_ref": "elsewhere/pupil@2"}), 400)
    assert get(http, ada, "student")["schema_ref"] == "pupil"


def test_an_imported_block_may_name_an_unknown_schema(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    options = user_memory.PutOptions(schema_ref="elsewhere/pupil@2")

    def imported(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, Scope(), ada, makes=True)
        user_memory.put(tx, owned, "student", "Ada", owned.owner, options)

    server.write(imported)
    address = f"/users/{ada}/blocks/student"
    assert (
        http.get(address, params={"format": "markdown"}).text == "---\nblock: student\n---\nAda\n"
    )
    sent = {"body": "Ada L.", "schema_ref": "elsewhere/pupil@2"}
    assert ok(http.put(address, json=sent))["schema_ref"] == "elsewhere/pupil@2"


def test_a_new_block_has_the_defaults_of_its_schema(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "begun.toml").write_text(
        'title = "Pupil"\npolicy = "guarded"\nlimit = 900\n[fields.name]\n[fields.level]\ndefault '
        '= "new"\n'
    )
    address = f"/users/{ada}/blocks/begun"
    made = ok(http.put(address, json={"schema_ref": "begun", "limit": 800}))
    assert made["body"].split() == ["##", "Name", "##", "Level", "new"]
    assert (made["title"], made["policy"], made["limit"]) == ("Pupil", "guarded", 800)
    # An existing block keeps its settings, and needs a text.
    refused(http.put(address, json={"schema_ref": "begun"}), 422)
    assert (
        ok(http.put(address, json={"schema_ref": "begun", "body": "## Name\nAda"}))["limit"] == 800
    )
    for name in ("elsewhere", "../begun", ""):
        said = refused(
            http.put(f"/users/{ada}/blocks/other", json={"body": "x", "schema_ref": name}), 400
        )
        assert "begun" in said.split("Use one of these: ")[1]
    refused(http.get(f"/users/{ada}/blocks/other"), 404)


def test_the_markdown_view_names_the_schema_and_reads_it_back(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "course.toml").write_text(
        'title = "Course"\nlimit = 500\n[fields.name]\nrequired = true\n'
    )
    (folder / "plain.toml").write_text("[fields.other]\n")
    markdown, one, other = (
        {"content-type": "text/markdown"},
        f"/users/{ada}/blocks/one",
        f"/users/{ada}/blocks/two",
    )
    put(http, ada, "one", "## Name\nMaths", schema_ref="course")
    view = http.get(one, params={"format": "markdown"}).text
    assert view == "---\nblock: one\nschema: course\n---\n## Name\nMaths\n"
    version = get(http, ada, "one")["version"]
    assert ok(http.put(one, content=view.encode(), headers=markdown))["version"] == version

    made = ok(http.put(other, content=view.replace("one", "two").encode(), headers=markdown))
    assert [made[name] for name in ("schema_ref", "title", "limit", "body")] == [
        "course",
        "Course",
        500,
        "## Name\nMaths",
    ]
    # The text is checked by the schema that the text names, not by the schema of the block.
    wrong = view.replace("course", "plain")
    assert "Line 5" in refused(http.put(one, content=wrong.encode(), headers=markdown), 400)
    free = ok(
        http.put(
            one, content=wrong.replace("plain", "plain\nformat: free").encode(), headers=markdown
        )
    )
    assert free["schema_ref"] == "plain"
    assert "course" in refused(
        http.put(one, content=view.replace("course", "gone").encode(), headers=markdown), 400
    )


def test_agent_blocks_and_standalone_blocks_start_with_schema_defaults(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "club.toml").write_text(
        'description = "Of the club"\npolicy = "guarded"\nlimit = '
        '700\n[fields.name]\n[fields.level]\ndefault = "new"\n'
    )
    loose = ok(http.post("/v1/blocks/", json={"label": "club", "schema_ref": "club", "limit": 900}))
    sent = {"label": "club", "value": "## Name\nChess", "schema_ref": "club"}
    agent = ok(http.post("/v1/agents/", json={"model": "scripted/model", "memory_blocks": [sent]}))
    (own,) = agent["memory"]["blocks"]
    shown = [
        [one[name] for name in ("value", "limit", "policy", "description", "schema_ref")]
        for one in (loose, own)
    ]
    assert shown == [
        ["## Name\n## Level\nnew", 900, "guarded", "Of the club", "club"],
        ["## Name\nChess", 700, "guarded", "Of the club", "club"],
    ]
    before = server.rows()
    for path, body in (
        ("/v1/blocks/", {"label": "x", "schema_ref": "gone"}),
        (
            "/v1/agents/",
            {"model": "scripted/model", "memory_blocks": [{"label": "x", "schema_ref": "gone"}]},
        ),
    ):
        assert "club" in refused(http.post(path, json=body), 400)
    refused(http.post("/v1/blocks/", json={"label": "x"}), 422)
    assert server.rows() == before


def test_schemas_can_be_listed_and_shown(http: httpx2.Client, server: ServerInThread) -> None:
    folder = server.settings.data_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "team.toml").write_text(
        'title = "Team"\n[fields.name]\n[fields.goals]\nkind = "list"\ndefault = ["Win"]\n'
    )
    (folder / "torn.toml").write_text("limit = 0\n")
    listed = {one["name"]: one for one in ok(http.get("/v1/schemas/"))}
    assert (listed["team"]["title"], listed["team"]["error"]) == ("Team", None)
    assert "Line 1" in listed["torn"]["error"]
    team = ok(http.get("/v1/schemas/team"))
    assert [(one["name"], one["kind"], one["default"]) for one in team["fields"]] == [
        ("name", "string", None),
        ("goals", "list", ["Win"]),
    ]
    assert team["text"] == "## Name\n## Goals\n- Win"
    assert "team" in refused(http.get("/v1/schemas/gone"), 404)
    refused(http.get("/v1/schemas/torn"), 400)
    (folder / "torn.toml").unlink()


def test_each_format_of_a_block_has_its_own_etag(http: httpx2.Client, ada: str) -> None:
    put(http, ada, "student", "One")
    address = f"/users/{ada}/blocks/student"
    tags = {
        name: http.get(address, params={"format": name}).headers["etag"]
        for name in ("json", "markdown", "toml")
    }
    assert len(set(tags.values())) == 3
    assert (
        http.get(
            address, params={"format": "toml"}, headers={"if-none-match": tags["json"]}
        ).status_code
        == 200
    )
    ok(http.put(address, json={"body": "Two"}, headers={"if-match": tags["markdown"]}))
    refused(http.put(address, json={"body": "Three"}, headers={"if-match": tags["toml"]}), 412)


def test_unreadable_block_files_are_refused_and_not_stored(
    http: httpx2.Client, server: ServerInThread, ada: str
) -> None:
    before = server.rows()
    for content, media_type, status, said in (
        (b"\xff", "text/markdown", 400, "UTF-8"),
        (b"a\x00", "text/markdown", 422, "NUL"),
        (b"---\nblock: other\n---\nText\n", "text/markdown", 400, '"other"'),
        (b"body = ", "application/toml", 400, "Line 1"),
        (b"Text", "text/html", 422, "text/markdown"),
        (b"#" * 1_000_001, "application/toml", 422, "1000000 at most. Send it as JSON."),
        (b"#" * 10_000_000, "text/markdown", 422, "The text has 10000000 characters"),
    ):
        headers = {"content-type": media_type}
        answer = http.put(f"/users/{ada}/blocks/student", content=content, headers=headers)
        assert said in refused(answer, status), content
    assert http.get(f"/users/{ada}/export").status_code == 404
    assert server.rows() == before
