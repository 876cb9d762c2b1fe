"""Sync of a workspace and a knowledge base.

Each gets the other's changes, and both texts if both changed the same file.
"""

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from ricordo.errors import Invalid, Unavailable
from ricordo.features.openwebui.mirror import sessions
from ricordo.features.openwebui.mirror.sessions import OpenWebUI
from tests.campaigns.sizes import short_and_long
from tests.features.openwebui.mirror.conftest import Synced
from tests.support.open_webui import FakeOpenWebUI
from tests.support.synced import Killed

DRAFT = "It begins at “sea”.\n\nThe second line.\nThe third line.\n"


async def test_files_are_synced_both_ways_with_their_folders(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.write("essays/one/draft.md", DRAFT)
    await here.write("plan.md", "Plan.")
    assert await here.settle() is None
    (base,) = there.bases.values()
    assert {one["principal_id"] for one in base.grants} == {"ada"}
    assert sorted(one["permission"] for one in base.grants) == ["read", "write"]
    assert there.user_files() == {"essays/one/draft.md": DRAFT, "plan.md": "Plan."}
    there.user_uploads("essays/theirs.md", "Mine.")
    assert await here.settle() is None
    assert (await here.files())["essays/theirs.md"] == "Mine."
    there.user_deletes("plan.md")
    await here.remove("essays/one/draft.md")
    assert await here.settle() is None
    assert await here.files() == there.user_files() == {"essays/theirs.md": "Mine."}


async def test_a_sync_without_changes_reads_only_the_file_list_and_notes(
    here: Synced, there: FakeOpenWebUI
) -> None:
    for number in range(5):
        await here.write(f"{number}.md", f"File {number}.")
    await here.put("human", "Ada.")
    await here.settle()
    there.asked.clear()
    await here.settle()
    (base,), (note,) = there.bases, there.notes
    assert there.asked == [f"GET /api/v1/knowledge/{base}/files", f"GET /api/v1/notes/{note}"]


async def test_an_edit_of_the_indexed_text_changes_the_file(
    here: Synced, there: FakeOpenWebUI
) -> None:
    """Open WebUI's page changes only the searched text.

    The bytes that it returns for the file stay the old ones.
    """
    await here.write("draft.md", DRAFT)
    await here.settle()
    there.user_edits("draft.md", there.user_files()["draft.md"].replace("second", "2nd"))
    await here.settle()
    # The file keeps its quotation marks.
    assert (await here.files())["draft.md"] == DRAFT.replace("second", "2nd")
    await here.write("draft.md", DRAFT.replace("second", "2nd").replace("third", "3rd"))
    await here.settle()
    assert there.user_files()["draft.md"] == DRAFT.replace("second", "2nd").replace("third", "3rd")


async def test_changes_of_different_lines_are_merged(here: Synced, there: FakeOpenWebUI) -> None:
    await here.write("draft.md", DRAFT)
    await here.settle()
    there.user_edits("draft.md", DRAFT.replace("third", "3rd"))
    await here.write("draft.md", DRAFT.replace("It begins", "It ends"))
    await here.settle()
    both = DRAFT.replace("third", "3rd").replace("It begins", "It ends")
    assert await here.files() == there.user_files() == {"draft.md": both}


async def test_conflicting_changes_of_one_line_keep_both_files(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.write("draft.md", DRAFT)
    await here.settle()
    there.user_edits("draft.md", DRAFT.replace("third", "3rd"))
    await here.write("draft.md", DRAFT.replace("third", "last"))
    await here.settle()
    both = {
        "draft.md": DRAFT.replace("third", "last"),
        "draft (conflict 1).md": DRAFT.replace("third", "3rd"),
    }
    assert await here.files() == there.user_files() == both


async def test_conflicts_and_swaps_sync_although_duplicate_texts_are_refused(
    here: Synced, there: FakeOpenWebUI
) -> None:
    """In an earlier version a text was still in the knowledge base when its copy was uploaded.

    The upload was refused and never repeated.
    """
    there.refuses_doubles = True
    await here.write("draft.md", DRAFT)
    await here.write("plan.md", "Plan.")
    await here.settle()
    there.user_edits("draft.md", DRAFT.replace("third", "3rd"))
    await here.write("draft.md", DRAFT.replace("third", "last"))
    assert await here.settle() is None
    both = {
        "draft.md": DRAFT.replace("third", "last"),
        "draft (conflict 1).md": DRAFT.replace("third", "3rd"),
    }
    assert await here.files() == there.user_files() == both | {"plan.md": "Plan."}
    await here.write("draft.md", "Plan.")
    await here.write("plan.md", both["draft.md"])
    assert await here.settle() is None
    assert await here.files() == there.user_files()


async def test_a_file_reverted_after_a_kill_during_its_upload_is_kept(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.write("draft.md", DRAFT)
    await here.settle()
    await here.write("draft.md", "Another.")

    async def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(OpenWebUI, "upload", die)
        with pytest.raises(Killed):
            await here.sync()
    assert there.user_files() == {}
    await here.write("draft.md", DRAFT)
    assert await here.settle() is None
    assert await here.files() == there.user_files() == {"draft.md": DRAFT}


async def test_an_edit_wins_over_a_deletion(here: Synced, there: FakeOpenWebUI) -> None:
    for name in ("a.md", "b.md", "c.md"):
        await here.write(name, f"Text of {name}.")
    await here.settle()
    there.user_deletes("a.md")
    await here.write("a.md", "Anew.")
    there.user_edits("b.md", "Changed there.")
    await here.remove("b.md")
    await here.settle()
    assert await here.files() == there.user_files() == {
        "a.md": "Anew.",
        "b.md": "Changed there.",
        "c.md": "Text of c.md.",
    }  # fmt: skip


async def test_a_lost_or_emptied_knowledge_base_is_filled_again(
    here: Synced, there: FakeOpenWebUI
) -> None:
    for name in ("a.md", "b.md"):
        await here.write(name, f"Text of {name}.")
    await here.settle()
    kept = await here.files()
    (base,) = there.bases.values()
    base.files.clear()
    await here.settle()
    assert await here.files() == there.user_files() == kept
    there.bases.clear()
    await here.settle()
    assert await here.files() == there.user_files() == kept


@pytest.mark.parametrize(
    ("pages", "removals", "additions"),
    short_and_long(((2, 4), (1, 2), (0, 1)), ((2, 3, 4), (1, 2), (0, 1, 2))),
)
async def test_changes_between_pages_of_a_file_list_delete_no_other_files(
    pages: Sequence[int],
    removals: Sequence[int],
    additions: Sequence[int],
    here: Synced,
    there: FakeOpenWebUI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When an earlier file is deleted, another one moves to a page that was already read."""
    monkeypatch.setattr(sessions, "_FILES_PER_PAGE", 2)
    for number in range(7):
        await here.write(f"{number}.md", f"File {number}.")
    await here.settle()
    texts = await here.files()
    new_names = (f"new-{number}.md" for number in range(100))
    for page, removed, added in product(pages, removals, additions):
        edits = _edits_before(there, page, removed, [next(new_names) for _ in range(added)])
        monkeypatch.setattr(there, "before_page", edits)
        assert await here.settle() is None
        assert await here.files() == there.user_files()
        for path in texts.keys() - there.user_files().keys():
            await here.write(path, texts[path])
        await here.settle()


async def test_a_knowledge_base_with_too_many_files_deletes_nothing(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await here.write(f"{number}.md", f"File {number}.")
    await here.settle()
    monkeypatch.setattr(sessions, "_FILES_PER_PAGE", 1)
    monkeypatch.setattr(sessions, "_MAX_FILES", 3)
    with pytest.raises(Invalid, match="has 4 files, and at most 3 are synced"):
        await here.settle()
    assert len(await here.files()) == 4


def _edits_before(
    there: FakeOpenWebUI, page: int, removed: int, new_names: list[str]
) -> Callable[[int], None]:
    """Return a hook that removes the first files and adds new ones, once, before this page."""
    waiting = [page]

    def edit(next_page: int) -> None:
        if next_page in waiting:
            waiting.clear()
            for path in list(there.user_files())[:removed]:
                there.user_deletes(path)
            for name in new_names:
                there.user_uploads(name, f"Text of {name}.")

    return edit


async def test_equal_names_on_both_sides_before_the_first_sync_keep_both_files(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.settle()
    there.user_uploads("draft.md", "Theirs.")
    await here.write("draft.md", "Ours.")
    there.user_uploads("same.md", "The same.")
    await here.write("same.md", "The same.")
    await here.settle()
    both = {"draft.md": "Ours.", "draft (conflict 1).md": "Theirs.", "same.md": "The same."}
    assert await here.files() == there.user_files() == both


async def test_duplicate_names_in_open_webui_get_a_number(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.settle()
    there.user_uploads("draft.md", "One.")
    there.user_uploads("draft.md", "Two.")
    await here.settle()
    assert await here.files() == {"draft.md": "One.", "draft (2).md": "Two."}
    before = dict(there.files)
    await here.settle()
    assert there.files == before


async def test_files_refused_by_open_webui_are_reported_and_not_uploaded_again(
    here: Synced, there: FakeOpenWebUI
) -> None:
    there.refuses_doubles = True
    await here.write("a.md", "The same.")
    await here.write("b.md", "The same.")
    await here.write("picture.png", b"\x89PNG\0")
    await here.write("data.bin", bytes(range(256)))
    await here.write("empty.md", "")
    told = await here.settle() or ""
    assert "refuses b.md: Duplicate content" in told
    assert "refuses picture.png: File type" in told
    assert sorted(there.user_files()) == ["a.md", "data.bin"]
    before, kept = dict(there.files), await here.files()
    assert (await here.settle(), await here.files()) == (told, kept)
    assert there.files == before  # The failed file was not uploaded again.
    await here.write("b.md", "Another.")
    await here.remove("picture.png")
    await here.remove("data.bin")
    assert await here.settle() is None
    assert there.user_files() == {"a.md": "The same.", "b.md": "Another."}
    assert "empty.md" in await here.files()


async def test_files_that_the_workspace_refuses_stay_in_open_webui(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_WORKSPACE_MB", "1")
    await here.settle()
    there.user_uploads("large.md", "x" * 1_100_000)
    there.user_uploads("odd\ue000name.md", "Odd.")
    there.user_uploads("fine.md", "Fine.")
    told = await here.settle() or ""
    assert "large.md in Open WebUI cannot be stored here: The workspace is full" in told
    assert "has a character that cannot be shown" in told
    assert await here.files() == {"fine.md": "Fine."}
    assert len(there.user_files()) == 3


async def test_a_file_name_loses_invisible_characters_and_is_synced_once(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.settle()
    there.user_uploads("odd\u200bname.md", "Odd.")
    for _ in range(3):
        await here.settle()
        assert await here.files() == {"oddname.md": "Odd."}
        assert len(there.user_files()) == 1


async def test_the_key_and_address_of_open_webui_come_from_settings(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.add()
    there.is_down = True
    with pytest.raises(Unavailable, match="answered 502"):
        await here.sync()
    there.is_down = False
    monkeypatch.setenv("RICORDO_OPENWEBUI_API_KEY", "sk-wrong")
    with pytest.raises(Invalid, match="refuses RICORDO_OPENWEBUI_API_KEY: 401"):
        await here.sync()
    assert (await here.noted()).last_error is not None
    monkeypatch.setenv("RICORDO_OPENWEBUI_URL", "http://127.0.0.1:9")
    # The address has changed, so nothing is sent to the old address.
    with pytest.raises(Invalid, match="the address in RICORDO_OPENWEBUI_URL"):
        await here.sync()
    with pytest.raises(Invalid, match="does not come from Open WebUI"):
        await Synced.sync(await _of_another(here, there, monkeypatch))


async def _of_another(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> Synced:
    monkeypatch.setenv("RICORDO_OPENWEBUI_URL", there.url)
    other = Synced(here.store, here.settings, there)
    other.user = "bob"
    await other.add()
    return other
