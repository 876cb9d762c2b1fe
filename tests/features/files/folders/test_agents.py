"""Folders of agents: attaching, open files, and the three tools in turns."""

import itertools
import time
from typing import Any

import pytest
from letta_client import APIStatusError

from ricordo.domain.ids import new_id
from ricordo.domain.message import ToolCallPart
from ricordo.errors import Unavailable
from ricordo.features.files.folders import windows
from ricordo.features.files.folders.line_search import LineSearch
from ricordo.features.files.folders.queries import PIECE, pieces_of_text
from ricordo.features.files.folders.records import File, FilePiece
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.features.files.folders.conftest import put
from tests.seams.http import ok
from tests.seams.server import MODEL
from tests.seams.stores import count_statements

TOOLS = {"open_files", "grep_files", "semantic_search_files"}
POEM = "".join(f"Line {number} of the poem.\n" for number in range(1, 301))


@pytest.fixture
def shelf(api: Api) -> tuple[str, str]:
    """Make a folder with files, and an agent that has it."""
    folder = api.client.folders.create(
        name=f"Shelf{time.monotonic_ns()}", description="Our texts.", instructions="Quote them."
    )
    put(api, folder.id, "poem.txt", POEM)
    put(api, folder.id, "bees.md", "# Bees\n\nBees make honey.\nWasps do not.\n")
    put(api, folder.id, "code.py", "def add(a, b):\n    return a + b\n")
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, folder_ids=[folder.id])
    return folder.id, agent.id


def turn(api: Api, agent: str, *calls: ToolCallPart) -> list[Any]:
    """Take one turn with these calls, one in each step; return the results of the tools."""
    api.server.says(*calls, "Done.")
    told = api.client.agents.messages.create(agent, input="Go.").messages
    return [one.tool_return for one in told if one.message_type == "tool_return_message"]


def system_of(api: Api) -> str:
    return api.server.model.requests[-1].messages[0].text


def test_attaching_a_folder_gives_the_agent_its_files_and_tools(
    api: Api, shelf: tuple[str, str]
) -> None:
    folder, agent_id = shelf
    agent = api.client.agents.retrieve(agent_id)
    assert {tool.name for tool in agent.tools} == TOOLS
    assert {tool.tool_type for tool in agent.tools} == {"letta_files_core"}
    assert [(one.id, one.description) for one in agent.sources] == [(folder, "Our texts.")]
    blocks = agent.memory.file_blocks or []
    assert [(one.source_id, one.is_open) for one in blocks] == [(folder, True)] * 3
    assert "[Viewing file start (out of 4 lines)]\n1: # Bees" in (blocks[0].value or "")
    assert [one.id for one in api.client.agents.folders.list(agent_id)] == [folder]
    assert list(api.client.folders.agents.list(folder)) == [agent_id]
    other = api.client.folders.create(name=f"Other{time.monotonic_ns()}").id
    for _ in range(2):
        assert len(api.client.agents.folders.attach(other, agent_id=agent_id).sources) == 2
    assert api.client.agents.folders.detach(folder, agent_id=agent_id).tools == agent.tools
    bare = api.client.agents.folders.detach(other, agent_id=agent_id)
    assert (bare.tools, bare.sources) == ([], [])
    again = api.http.patch(f"/v1/agents/{agent_id}", json={"source_ids": [other]}).json()
    assert [one["id"] for one in again["sources"]] == [other]
    assert {tool["name"] for tool in again["tools"]} == TOOLS
    assert api.http.patch(f"/v1/agents/{agent_id}", json={"folder_ids": []}).json()["sources"] == []
    for path in ("attach", "detach"):
        answer = api.http.patch(f"/v1/agents/{agent_id}/folders/{path}/{new_id('source')}")
        assert answer.status_code == 404
    api.client.agents.folders.attach(folder, agent_id=agent_id)
    api.client.folders.delete(folder)
    assert api.client.agents.retrieve(agent_id).tools == []


def test_open_files_are_in_the_prompt_with_their_line_numbers(
    api: Api, shelf: tuple[str, str]
) -> None:
    folder, agent_id = shelf
    name = api.client.folders.retrieve(folder).name
    api.client.agents.files.close_all(agent_id)
    (opened,) = turn(
        api,
        agent_id,
        call("open_files", file_requests=[{"file_name": "poem.txt", "offset": 100, "length": 50}]),
    )
    assert opened == f"* Opened {name}/poem.txt (lines 101-150)"
    assert f'<directory name="{name}">\n<description>Our texts.</description>\n' in system_of(api)
    assert f'<file status="open" name="{name}/poem.txt">' in system_of(api)
    assert (
        "<value>\n[Viewing lines 101 to 150 (out of 300 lines)]\n101: Line 101 of the poem.\n"
        in system_of(api)
    )
    assert "150: Line 150 of the poem.\n</value>" in system_of(api)
    assert f'<file status="closed" name="{name}/bees.md">' in system_of(api)
    moved, both = turn(
        api,
        agent_id,
        call("open_files", file_requests=[{"file_name": f"{name}/poem.txt"}]),
        call(
            "open_files",
            file_requests=[{"file_name": "bees.md"}, {"file_name": "code.py"}],
            close_all_others=True,
        ),
    )
    assert moved == f"* Opened {name}/poem.txt (lines 1-300) (previously lines 101-150)"
    assert both == (
        f"* Opened 2 files: {name}/bees.md (lines 1-4), {name}/code.py (lines 1-2)\n"
        f"Note: Closed 1 file(s) due to close_all_others=True: {name}/poem.txt"
    )
    assert (
        "[Viewing file start (out of 4 lines)]\n1: # Bees\n2: \n3: Bees make honey.\n4: Wasps do "
        "not.\n" in system_of(api)
    )
    assert "- current_files_open=2" in system_of(api)
    listed = api.client.agents.files.list(agent_id)
    assert [(one.file_name, one.is_open) for one in listed.files] == [
        (f"{name}/code.py", True),
        (f"{name}/bees.md", True),
        (f"{name}/poem.txt", False),
    ]
    assert (
        listed.files[0].visible_content
        == "[Viewing file start (out of 2 lines)]\n1: def add(a, b):\n2:     return a + b"
    )


def test_the_least_recently_used_files_are_closed(api: Api, shelf: tuple[str, str]) -> None:
    folder, agent_id = shelf
    api.client.agents.update(agent_id, max_files_open=2)
    name = api.client.folders.retrieve(folder).name
    _, _, third, too_many = turn(
        api,
        agent_id,
        call("open_files", file_requests=[{"file_name": "poem.txt"}]),
        call("open_files", file_requests=[{"file_name": "bees.md"}]),
        call("open_files", file_requests=[{"file_name": "code.py"}]),
        call(
            "open_files",
            file_requests=[{"file_name": one} for one in ("code.py", "bees.md", "poem.txt")],
        ),
    )
    assert third.endswith(
        f"Note: Closed 1 least recently used file(s) due to open file limit: {name}/poem.txt"
    )
    assert "3 files are too many to open at once. Open at most 2" in too_many
    # A file that a search finds counts as used.
    turn(api, agent_id, call("grep_files", pattern="honey"))
    (last,) = turn(api, agent_id, call("open_files", file_requests=[{"file_name": "poem.txt"}]))
    assert last.endswith(f"{name}/code.py")
    ids = {
        one.file_name.split("/")[1]: one.file_id
        for one in api.client.agents.files.list(agent_id).files
    }
    assert list(api.client.agents.files.open(ids["code.py"], agent_id=agent_id)) == [
        f"{name}/bees.md"
    ]
    api.client.agents.files.close(ids["code.py"], agent_id=agent_id)
    assert list(api.client.agents.files.close_all(agent_id)) == [f"{name}/poem.txt"]
    assert api.client.agents.files.list(agent_id, is_open=True).files == []
    first = api.client.agents.files.list(agent_id, limit=2)
    assert (len(first.files), first.has_more) == (2, True)
    rest = api.client.agents.files.list(agent_id, limit=2, after=first.next_cursor or "")
    assert (len(rest.files), rest.has_more) == (1, False)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_before_a_file_say_whether_there_are_more(api: Api, folder: str, order: Any) -> None:
    agent_id = api.client.agents.create(model=MODEL, include_base_tools=False).id
    for number in range(5):
        put(api, folder, f"{number}.txt", f"Text {number}.")
    api.client.agents.folders.attach(folder, agent_id=agent_id)
    path = f"/v1/agents/{agent_id}/files"
    whole = api.http.get(path, params={"order": order}).json()
    assert not whole["has_more"]
    ids = [file["id"] for file in whole["files"]]
    for end, limit in itertools.product(range(5), range(1, 6)):
        page = api.http.get(
            path, params={"order": order, "before": ids[end], "limit": limit}
        ).json()
        begin = max(0, end - limit)
        assert [file["id"] for file in page["files"]] == ids[begin:end], (end, limit)
        assert page["has_more"] is (begin > 0), (end, limit)
    paged = api.client.agents.files.list(agent_id, before=ids[4], limit=1, order=order)
    assert [file.id for file in paged] == ids[3::-1]
    times = [file["last_accessed_at"] for file in whole["files"]]
    assert times == sorted(times, reverse=order == "desc")


def test_attaching_a_folder_opens_as_many_files_as_allowed(api: Api, folder: str) -> None:
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, max_files_open=3).id
    for number in range(5):
        put(api, folder, f"{number}.txt", f"Text {number}.\n" * (number + 1))
    attached = api.client.agents.folders.attach(folder, agent_id=agent)
    blocks = {one.label.split("/")[1]: one for one in attached.memory.file_blocks or []}  # type: ignore[union-attr]
    assert {name for name, one in blocks.items() if one.is_open} == {"2.txt", "3.txt", "4.txt"}
    assert blocks["3.txt"].value == "[Viewing file start (out of 4 lines)]\n" + "\n".join(
        f"{line}: Text 3." for line in range(1, 5)
    )
    assert blocks["0.txt"].value == ""

    def opened() -> dict[str, bool]:
        files = api.client.agents.files.list(agent).files
        return {
            one.file_name.split("/")[1][0]: one.is_open
            for one in files
            if bool(one.visible_content) == one.is_open
        }

    assert opened() == {"4": True, "3": True, "2": True, "1": False, "0": False}
    turn(api, agent)
    assert system_of(api).count('<file status="open"') == 3
    # An opened file replaces the least recently used one; a closed file stays closed.
    (told,) = turn(api, agent, call("open_files", file_requests=[{"file_name": "0.txt"}]))
    assert "Closed 1 least recently used file(s)" in told
    assert opened() == {"0": True, "4": True, "3": True, "2": False, "1": False}
    api.client.agents.files.close_all(agent)
    assert not any(opened().values())


def test_a_file_uploaded_later_is_opened(api: Api, folder: str) -> None:
    agent = api.client.agents.create(
        model=MODEL, include_base_tools=False, max_files_open=2, folder_ids=[folder]
    ).id
    assert api.client.agents.files.list(agent).files == []
    names = []
    for number in range(3):
        put(api, folder, f"{number}.txt", f"Text {number}.")
        names.append(
            [one.file_name[-5] for one in api.client.agents.files.list(agent, is_open=True).files]
        )
    assert names == [["0"], ["1", "0"], ["2", "1"]]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            {"file_name": "nothing.txt"},
            'No file named "nothing.txt" is attached. Attached are, for example:',
        ),
        ({"file_name": "../../etc/passwd"}, "No file named"),
        ({"file_name": "poem.txt", "offset": -1}, "offset must be 0 or more"),
        (
            {"file_name": "poem.txt", "offset": 300},
            "has 300 lines, so the offset 300 is behind its end",
        ),
        ({"file_name": "poem.txt", "offset": 10**18}, "has 300 lines"),
        ({"file_name": "poem.txt", "length": 0}, "length must be 1 or more"),
        ({"file_name": "poem.txt", "offset": 10, "length": 10**18}, "(lines 11-300)"),
        ({"file_name": "poem.txt", "offset": "ten"}, "The arguments of open_files are not right"),
        ({}, "The arguments of open_files are not right"),
    ],
)
def test_opening_an_invalid_file_or_range_returns_a_reason(
    api: Api, shelf: tuple[str, str], request_: dict[str, Any], why: str
) -> None:
    (told,) = turn(api, shelf[1], call("open_files", file_requests=[request_]))
    assert why in told


def test_a_file_requested_by_path_and_by_name_is_opened_once(
    api: Api, shelf: tuple[str, str]
) -> None:
    folder, agent_id = shelf
    name = api.client.folders.retrieve(folder).name
    api.client.agents.update(agent_id, max_files_open=2)
    poem = f"{name}/poem.txt"
    ranges = [{"offset": 9}, {"offset": 19, "length": 11}]
    orders = [
        [{"file_name": first, **ranges[0]}, {"file_name": second, **ranges[1]}]
        for first in (poem, f"/{poem}", "poem.txt")
        for second in (poem, f"/{poem}", "poem.txt", "/poem.txt")
    ]
    opened = turn(
        api,
        agent_id,
        call("open_files", file_requests=[{"file_name": "bees.md"}], close_all_others=True),
        *(call("open_files", file_requests=requests) for requests in orders),
    )
    assert [text.split(" (")[0] for text in opened[1:]] == [f"* Opened {poem}"] * len(orders)
    assert all(text.startswith(f"* Opened {poem} (lines 20-30)") for text in opened[1:])
    assert not any("Closed" in text for text in opened[1:])
    (both,) = turn(
        api,
        agent_id,
        call("open_files", file_requests=[*orders[0], {"file_name": "bees.md"}]),
    )
    assert both.startswith("* Opened 2 files: ")


def test_long_open_files_are_truncated_with_a_note(api: Api, shelf: tuple[str, str]) -> None:
    _, agent_id = shelf
    api.client.agents.update(agent_id, per_file_view_window_char_limit=500)
    api.client.agents.files.close_all(agent_id)
    turn(api, agent_id, call("open_files", file_requests=[{"file_name": "poem.txt"}]))
    cut = "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
    value = system_of(api).split("<value>\n")[1].split("\n</value>")[0]
    assert value.endswith(cut)
    assert len(value) == 500
    for wrong in ({"max_files_open": 0}, {"per_file_view_window_char_limit": -5}):
        with pytest.raises(APIStatusError):
            api.client.agents.update(agent_id, **wrong)


def test_grep_files_says_that_it_stops_at_a_thousand_matches(api: Api) -> None:
    folder = api.client.folders.create(name=f"Long{time.monotonic_ns()}")
    put(api, folder.id, "long.txt", "bee\n" * 1_200)
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, folder_ids=[folder.id])
    end, behind = turn(
        api,
        agent.id,
        call("grep_files", pattern="bee", context_lines=0, offset=980),
        call("grep_files", pattern="bee", offset=1_000),
    )
    stop = "The search stops at 1000 matches. Use a narrower pattern, or include."
    assert end.endswith(stop)
    assert behind == stop


def test_open_files_without_files_claims_nothing_about_open_ones(
    api: Api, shelf: tuple[str, str]
) -> None:
    (answer,) = turn(api, shelf[1], call("open_files", file_requests=[]))
    assert answer == "No files were named, so nothing changed."


def test_grep_files_finds_lines_by_regular_expressions(api: Api, shelf: tuple[str, str]) -> None:
    folder, agent_id = shelf
    name = api.client.folders.retrieve(folder).name
    one, many, more, last, none, wrong, included = turn(
        api,
        agent_id,
        call("grep_files", pattern="HONEY|return"),
        call("grep_files", pattern=r"^line \d+ of", context_lines=0),
        call("grep_files", pattern="^line", offset=280),
        call("grep_files", pattern="^line", offset=300),
        call("grep_files", pattern="nowhere"),
        call("grep_files", pattern="("),
        call("grep_files", pattern="a", include="*.py"),
    )
    line = "=" * 80
    assert one == (
        f"Found 2 total matches across 2 files (showing matches 1-2 of 2)\n{line}\nFiles with "
        f"matches:\n  - {name}/bees.md: 1 matches\n  - {name}/code.py: 1 matches\n\n=== "
        f"{name}/bees.md:3 ===\n  2: \n> 3: Bees make honey.\n  4: Wasps do not.\n\n=== "
        f"{name}/code.py:2 ===\n  1: def add(a, b):\n> 2:     return a + b\n\nNo more matches to "
        "show."
    )
    assert many.startswith("Found 300 total matches across 1 files (showing matches 1-20 of 300)")
    assert many.endswith(
        'To see more matches, call: grep_files(pattern="^line \\d+ of", offset=20)'
    )
    assert "showing matches 281-300 of 300" in more
    assert more.endswith("No more matches to show.")
    assert last == "There are 300 matches, so there are none after the first 300."
    assert none == "No matches found for pattern: 'nowhere'"
    assert "The pattern is not a regular expression that RE2 reads: missing )" in wrong
    assert "bees" not in included
    assert "code.py" in included


def test_the_include_filter_takes_wildcards_name_parts_or_regular_expressions(
    api: Api, shelf: tuple[str, str]
) -> None:
    folder, agent_id = shelf
    name = api.client.folders.retrieve(folder).name
    wanted = {
        "*.py": {"code.py"},
        "*.md": {"bees.md"},
        "bees.md": {"bees.md"},
        "code": {"code.py"},
        f"{name}/poem.txt": {"poem.txt"},
        f"{name}/*": {"bees.md", "code.py", "poem.txt"},
        r".*\.txt$": {"poem.txt"},
        r"\.(py|md)$": {"bees.md", "code.py"},
        r"^poem\.txt$": {"poem.txt"},
        r"BEES\.[a-z]+": {"bees.md"},
        r"[bc][eo]+[sd]e?\.": {"bees.md", "code.py"},
        "*.java": set(),
        "(": set(),
    }
    told = turn(
        api, agent_id, *(call("grep_files", pattern=".", include=include) for include in wanted)
    )
    for (include, files), text in zip(wanted.items(), told, strict=True):
        found = {one for one in ("bees.md", "code.py", "poem.txt") if f"  - {name}/{one}:" in text}
        assert found == files, (include, text)
        assert files or text == f"No files match filter pattern '{include}'"


HOSTILE_PATTERNS = [
    "(a+)+$",
    "(" * 1001,
    "a{1000}{1000}",
    "(?P<x>a)(?P=x)",
    "\\",
    "[",
    "(?=a)",
    "\x00",
    "",
    "(x{500}){2}" * 50,
]


def test_hostile_patterns_do_not_break_a_turn(api: Api, folder: str) -> None:
    put(api, folder, "a.txt", "a" * 200_000 + "\n" + "a" * 100 + "!\n")
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, folder_ids=[folder])
    told = turn(
        api, agent.id, *(call("grep_files", pattern=pattern) for pattern in HOSTILE_PATTERNS)
    )
    assert len(told) == len(HOSTILE_PATTERNS)
    assert (
        "line cut: 200000 characters" in turn(api, agent.id, call("grep_files", pattern="^a+$"))[0]
    )


async def test_a_search_that_takes_too_long_is_stopped() -> None:
    file = File("file-1", "org-1", "source-1", "a.txt", "a.txt")
    search = LineSearch("a")
    search._until = 0
    with pytest.raises(Unavailable, match="more than 30 seconds"):
        await search.search_files([file], [FilePiece("file-1", 0, 0, 0, "a")])


@pytest.mark.parametrize("pattern", [r"\Afoo", r"foo\z", "(?-m)^foo$", "(?i-m:^foo)", "^foo$"])
async def test_patterns_match_each_line_as_if_it_were_the_whole_text(pattern: str) -> None:
    """Pieces of several lines are searched first, and must not exclude a line."""
    file = File("file-1", "org-1", "source-1", "a.txt", "a.txt")
    search = LineSearch(pattern)
    await search.search_files([file], pieces_of_text("file-1", "one\nfoo\nfoot\n two foo\nend\n"))
    lines = [match.line for match in search.matches]
    assert lines == {r"\Afoo": [1, 2], r"foo\z": [1, 3], "(?i-m:^foo)": [1, 2]}.get(pattern, [1])


async def test_a_match_across_the_pieces_of_a_long_line_is_found() -> None:
    text = f"one\n{'a' * (PIECE - 2)}honey{'a' * PIECE}\nend\n"
    pieces = pieces_of_text("file-1", text)
    assert not any("honey" in piece.text for piece in pieces)
    search = LineSearch("honey")
    await search.search_files([File("file-1", "org-1", "source-1", "a.txt", "a.txt")], pieces)
    assert [match.line for match in search.matches] == [1]


def test_semantic_search_finds_passages_by_meaning(api: Api, shelf: tuple[str, str]) -> None:
    folder, agent_id = shelf
    name = api.client.folders.retrieve(folder).name
    (found,) = turn(api, agent_id, call("semantic_search_files", query="Who makes honey?", limit=1))
    assert found == (
        f"Found 1 semantic matches in 1 files for query: 'Who makes honey?'\n{'=' * 80}\n\n=== "
        f"{name}/bees.md (passage #1, from line 1) ===\n# Bees\n\nBees make honey.\nWasps do not."
    )
    assert api.server.model.requests[-1].messages[-1].is_untrusted


def test_deleted_replaced_and_detached_files_are_closed(api: Api, shelf: tuple[str, str]) -> None:
    folder, agent_id = shelf
    turn(
        api,
        agent_id,
        call("open_files", file_requests=[{"file_name": one} for one in ("bees.md", "poem.txt")]),
    )
    put(api, folder, "bees.md", "Other bees.", duplicate_handling="replace")
    api.client.folders.files.delete(
        next(
            one.id for one in api.client.folders.files.list(folder) if one.file_name == "poem.txt"
        ),
        folder_id=folder,
    )
    grepped, searched = turn(
        api,
        agent_id,
        call("grep_files", pattern="poem|bees"),
        call("semantic_search_files", query="poem bees"),
    )
    assert "Line 1 of" not in grepped + searched
    assert "Other bees." in grepped
    assert "make honey" not in system_of(api)
    assert "poem.txt" not in system_of(api)
    turn(api, agent_id, call("open_files", file_requests=[{"file_name": "bees.md"}]))
    assert "1: Other bees." in system_of(api)
    api.client.agents.folders.detach(folder, agent_id=agent_id)
    api.server.says("Done.")
    api.client.agents.messages.create(agent_id, input="Go.")
    assert "<directories>" not in system_of(api)


def test_detaching_a_folder_that_is_not_attached_changes_nothing(api: Api, folder: str) -> None:
    """A person attached the tools, which detaching the last folder would detach."""
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, tools=[*TOOLS])
    api.client.agents.folders.detach(folder, agent_id=agent.id)
    kept = {tool.name for tool in api.client.agents.tools.list(agent.id)}
    assert kept == set(TOOLS)
    api.client.agents.folders.attach(folder, agent_id=agent.id)
    api.client.agents.folders.detach(folder, agent_id=agent.id)
    assert list(api.client.agents.tools.list(agent.id)) == []


def test_file_tools_report_that_no_files_are_attached(api: Api) -> None:
    agent = api.client.agents.create(model=MODEL, include_base_tools=False, tools=[*TOOLS])
    told = turn(
        api,
        agent.id,
        call("grep_files", pattern="x"),
        call("semantic_search_files", query="x"),
        call("open_files", file_requests=[{"file_name": "x"}]),
    )
    assert told[:2] == ["No files are currently attached to search"] * 2
    assert "No files are attached." in told[2]


def test_listing_agents_reads_their_folders_in_a_bounded_number_of_statements(
    api: Api, shelf: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = shelf
    other = api.client.folders.create(name=f"Other{time.monotonic_ns()}").id
    put(api, other, "note.txt", "A note.\n")
    block = api.client.blocks.create(label="shared", value="").id
    more = [
        api.client.agents.create(model=MODEL, folder_ids=ids).id
        for ids in ([other], [folder, other], [])
    ]
    for agent in (first, *more):
        api.client.agents.blocks.attach(block, agent_id=agent)
    turn(
        api,
        first,
        call("open_files", file_requests=[{"file_name": "poem.txt", "offset": 1, "length": 2}]),
    )
    monkeypatch.setattr(windows, "MOST_NAMED", 2)  # There is one file more than the prompt names.
    wanted = {agent: ok(api.http.get(f"/v1/agents/{agent}")) for agent in (first, *more)}
    assert [len(wanted[agent]["memory"]["file_blocks"]) for agent in (first, *more)] == [3, 1, 2, 0]
    for path in ("/v1/agents/", f"/v1/blocks/{block}/agents"):
        counts: list[int] = []
        for _ in range(3):  # a job of the server may run beside the request
            with count_statements(api.server.runtime.store) as counted:
                listed = {one["id"]: one for one in ok(api.http.get(path, params={"limit": 4}))}
            assert {agent: listed[agent] for agent in wanted} == wanted, path
            counts.append(len(counted.statements))
        # Statements for the key, the block, the agents, their folders, the files that are shown
        # from their first line, and the file that is shown in part.
        assert min(counts) <= 1 + 1 + 4 + 4 + 1 + 1, path


def test_include_default_source_creates_an_empty_folder_for_the_agent(api: Api) -> None:
    http = api.http
    body = {"name": "Dora", "model": MODEL, "include_default_source": True}
    for name in ("Dora External Data Source", "Dora External Data Source (2)"):
        agent = ok(http.post("/v1/agents/", json=body))
        (folder,) = ok(http.get(f"/v1/agents/{agent['id']}/folders"))
        assert (folder["name"], ok(http.get(f"/v1/folders/{folder['id']}/files"))) == (name, [])
        assert "grep_files" in [tool["name"] for tool in agent["tools"]]
