"""Memory as notes.

The user's edits become versions of the memory. Changes that the editor makes automatically do not.
"""

import pytest

from ricordo.features.openwebui.mirror.texts import carried_over, markdown_key, plain_key
from ricordo.memory import user_memory
from tests.features.openwebui.mirror.conftest import USER, Synced
from tests.support.open_webui import FakeOpenWebUI

TEXT = """# Ada

Prefers *short* answers and __clear__ ones,
with examples_of_code.

- likes *sea*
- likes tea
  - green
- [ ] buy a book

1. first

---

| what | when |
|---|---|
| exam | May |

Maths: $x^2$ and 3 * 4.

```python
a = 1
  b = 2
```
"""
# The editor of Open WebUI 0.12.4 saved this text when a browser opened the note, though nothing was
# typed.
OPENED = """# Ada

Prefers _short_ answers and **clear** ones,  \nwith examples_of_code.

*   likes _sea_
*   likes tea
    *   green
*   [ ] buy a book

1.  first

* * *

| what | when |
| --- | --- |
| exam | May |

Maths: $x^2$ and 3 * 4.

```python
a = 1
  b = 2
```"""


async def test_blocks_become_notes_shared_with_their_user(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", TEXT, title="About Ada")
    await here.put("rules", "Be kind.", policy="read_only")
    assert await here.settle() is None
    assert there.user_notes() == {"About Ada": TEXT, "rules": "Be kind."}
    shared = {note["title"]: note["access_grants"] for note in there.notes.values()}
    assert {one["principal_id"] for grants in shared.values() for one in grants} == {"ada"}
    assert [one["permission"] for one in shared["About Ada"]] == ["read", "write"]
    html = {note["title"]: note["data"]["content"]["html"] for note in there.notes.values()}
    assert "<li>likes <em>sea</em></li>" in html["About Ada"]
    await here.put("human", "# Ada\n")
    await here.do(lambda tx, owned: user_memory.delete(tx, owned, "rules", owned.owner))
    await here.settle()
    assert there.user_notes() == {"About Ada": "# Ada\n"}


async def test_reformatting_by_the_editor_is_no_edit(here: Synced, there: FakeOpenWebUI) -> None:
    await here.put("human", TEXT)
    await here.settle()
    count = len(await here.versions())
    there.user_writes("human", OPENED)
    assert await here.settle() is None
    assert (await here.text(), len(await here.versions())) == (TEXT, count)
    there.user_writes(
        "human", OPENED.replace("likes tea", "likes coffee").replace("# Ada", "# Ada Lovelace")
    )
    await here.settle()
    assert await here.text() == TEXT.replace("likes tea", "likes coffee").replace(
        "# Ada", "# Ada Lovelace"
    )


async def test_an_edit_of_a_note_is_a_version_by_the_owner(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", "- a\n- b")
    await here.settle()
    there.user_writes("human", "*   a\n*   b\n*   c")
    await here.settle()
    last = (await here.versions())[-1]
    owner = await here.do(lambda _tx, owned: owned.user)
    assert (last.author.kind, last.author.id) == ("user", owner.id)
    assert last.reason == "Edited as a note in Open WebUI"
    assert await here.text() == "- a\n- b\n- c"


async def test_changes_of_different_lines_merge_and_of_one_line_become_proposals(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", "one\ntwo\nthree")
    await here.settle()
    there.user_writes("human", "one\ntwo\n3")
    await here.put("human", "1\ntwo\nthree")
    assert await here.settle() is None
    assert await here.text() == there.user_notes()["human"] == "1\ntwo\n3"
    there.user_writes("human", "1\nmine\n3")
    await here.put("human", "1\nours\n3")
    told = await here.settle() or ""
    (waiting,) = await here.waiting()
    assert (waiting.value, waiting.author.kind) == ("1\nmine\n3", "user")
    assert (
        told
        == '"human" changed here and in its note, in the same lines. The note\'s text waits as '
        f"the proposal {waiting.id}."
    )
    assert await here.text() == there.user_notes()["human"] == "1\nours\n3"
    await here.approve(waiting.id)
    await here.settle()
    assert await here.text() == there.user_notes()["human"] == "1\nmine\n3"


async def test_emptied_and_deleted_notes_are_written_again(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", "Ada.")
    await here.settle()
    for _ in range(2):
        there.user_writes("human", "\n")
        await here.settle()
        assert await here.text() == there.user_notes()["human"] == "Ada."
        there.user_deletes_note("human")
        await here.settle()
        assert await here.text() == there.user_notes()["human"] == "Ada."


async def test_an_edited_note_restores_its_deleted_block(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", "Ada.")
    await here.put("plan", "Plan.")
    await here.settle()
    there.user_writes("human", "Ada Lovelace.")
    for label in ("human", "plan"):
        await here.do(
            lambda tx, owned, label=label: user_memory.delete(tx, owned, label, owned.owner)
        )
    await here.settle()
    assert await here.texts() == there.user_notes() == {"human": "Ada Lovelace."}


async def test_an_edit_that_exceeds_the_block_stays_in_the_note(
    here: Synced, there: FakeOpenWebUI
) -> None:
    await here.put("human", "Ada.", limit=20)
    await here.settle()
    there.user_writes("human", "Ada, of whom there is much to say.")
    for _ in range(2):
        assert 'The note of "human" cannot be stored here' in (await here.settle() or "")
        assert (await here.text(), there.user_notes()["human"]) == (
            "Ada.",
            "Ada, of whom there is much to say.",
        )


async def test_a_note_shared_by_another_user_is_not_adopted(
    here: Synced, there: FakeOpenWebUI
) -> None:
    """People who may write a note could change its memory, so shared notes are never filled."""
    await here.settle()
    owner = await here.do(lambda _tx, owned: owned.user)
    noted = {"user": owner.id, "label": "human", "text": ""}
    eve = [
        {"principal_type": "user", "principal_id": name, "permission": "write"}
        for name in ("ada", "eve")
    ]
    content = {"json": None, "html": "", "md": "human"}
    there.notes["eves"] = {
        "id": "eves",
        "title": "human ",
        "data": {"content": content},
        "meta": {"ricordo": noted},
        "access_grants": eve,
        "updated_at": 1,
    }
    await here.put("human", "Ada's own.")
    await here.settle()
    assert there.user_notes() == {"human ": "human", "human": "Ada's own."}
    assert USER == "open-webui:ada"


@pytest.mark.parametrize(
    ("before", "there", "wanted"),
    [
        ("a\nb\n", "a\nb", "a\nb\n"),
        ("- a\n- b\n", "*   a\n*   x\n*   b", "- a\n- x\n- b\n"),
        ("a\n\nb", "a\n\nb\n\nc", "a\n\nb\n\nc"),
        ("1) a\n2) b", "1.  a\n2.  c", "1) a\n2.  c"),
        ("snake_case and \\*star*", "snake_case and \\*star\\*", "snake_case and \\*star*"),
        ("a _word_", "a *word* more", "a *word* more"),
        ("", "new", "new"),
    ],
)
def test_lines_with_equal_meaning_keep_their_form(before: str, there: str, wanted: str) -> None:
    assert carried_over(before, there, markdown_key) == wanted


def test_files_ignore_only_differences_in_quotation_marks_and_spaces() -> None:
    assert carried_over("“a”\r\nb ﬁ", '"a"\nb fi\nc', plain_key) == "“a”\r\nb ﬁ\nc"
    assert carried_over("- a", "* a", plain_key) == "* a"


async def test_pending_proposals_are_shown_in_a_read_only_note(
    here: Synced, there: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_PUBLIC_URL", "https://memory.example.org/")
    await here.put("human", "Likes tea.\n", policy="propose")
    await here.settle()
    assert there.waiting_note() is None
    await here.propose("human", "Likes tea.", "Likes coffee.", reasoning="She said so.")
    await here.settle()
    text = there.waiting_note() or ""
    for words in ("− Likes tea.", "+ Likes coffee.", "Why: She said so.", "By Nina:"):
        assert words in text
    assert "https://memory.example.org/ui/people/user-" in text
    (note,) = [one for one in there.notes.values() if one["title"] == "Waiting for you"]
    assert [one["permission"] for one in note["access_grants"]] == ["read"]
    there.user_writes("Waiting for you", "Approve all!")
    await here.settle()
    assert there.waiting_note() == text
    there.user_deletes_note("Waiting for you")
    await here.settle()
    assert there.waiting_note() == text
    (waiting,) = await here.waiting()
    await here.reject(waiting.id)
    await here.settle()
    assert (there.waiting_note(), there.user_notes()) == (None, {"human": "Likes tea.\n"})
