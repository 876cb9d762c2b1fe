"""The branch that shows a memory as TOML, in the layout of YouLab's first storage."""

import json
from pathlib import Path

from ricordo.domain.remote import Access
from ricordo.domain.scope import Actor, Scope
from ricordo.features.git.sync import GitRemotes
from ricordo.features.remotes import service as remotes
from ricordo.memory.user_memory import PutOptions, open_memory, propose_edit, put
from ricordo.settings import Settings
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.support.git import fsck, git

ADA = Actor("user", "user-1", "Ada")
SCHEMA = '[fields.name]\nkind = "string"\n[fields.strengths]\nkind = "list"\n'


async def test_a_memory_goes_out_as_toml_and_the_same_memory_is_the_same_commit(
    store: SqliteStore, tmp_path: Path
) -> None:
    (tmp_path / "block_schemas").mkdir()
    (tmp_path / "block_schemas" / "student.toml").write_text(SCHEMA)

    def begin(tx: Transaction) -> None:
        owned = open_memory(tx, Scope(), "alice", makes=True)
        put(tx, owned, "student", "## Name\nAlice\n\n## Strengths\n- Tea", ADA, PutOptions(schema_ref="student"))
        put(tx, owned, "courses/maths", "Free\n\n text ", ADA)
        propose_edit(tx, owned, "student", "Alice", "Alice B.", Actor("agent", "tutor", "Tutor"))

    await store.write(begin)
    settings, bare = Settings(data_dir=tmp_path), tmp_path / "remotes" / "there.git"
    access = Access(str(bare), options={"shows_toml": True})
    remote = await remotes.add(store, settings, Scope(), "alice", GitRemotes(), access)
    await remotes.sync(store, settings, GitRemotes(), remote)
    shown = git(bare, "rev-parse", "toml")
    await remotes.sync(store, settings, GitRemotes(), remote)
    assert (git(bare, "rev-parse", "toml"), fsck(bare)) == (shown, "")
    assert 'name = "Alice"' in git(bare, "show", "toml:blocks/student.toml")
    assert "Free\n\n text " in git(bare, "show", "toml:blocks/courses/maths.toml")
    (name,) = git(bare, "ls-tree", "--name-only", "toml", "pending_diffs/").split()
    diff = json.loads(git(bare, "show", f"toml:{name}"))
    assert (diff["block_label"], diff["agent_id"], "Alice B." in diff["proposed_value"]) == ("student", "tutor", True)
