"""`git clone`, `pull` and `push` of a user's memory with the stock client."""

import gzip
import random
import socket
import subprocess
import unicodedata
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.domain.authors import author_of
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.memory.user_memory import PutOptions, UserMemory, delete, open_memory, put, rename
from ricordo.storage import blocks, history, proposals, users
from tests.seams.server import ServerInThread, serving
from tests.support.git import fsck, git, ids, run_git
from tests.support.synced import set_email

ADA = Actor("administrator", "user-1", "Ada")
_numbers = count(1)


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server whose requests may have one megabyte."""
    server = ServerInThread(tmp_path_factory.mktemp("data"), max_body_mb=1)
    server.start()
    yield server
    server.stop()


class Memory:
    """A user of the server, with git and API calls on her memory."""

    def __init__(self, server: ServerInThread) -> None:
        self.server = server
        self.name = f"ada {next(_numbers)}"
        self.url = f"{server.url}/users/{self.name.replace(' ', '%20')}/memory.git"
        server.write(lambda tx: users.find_or_make(tx, Scope(), self.name))

    def put(self, label: str, text: str, **options: str) -> None:
        self.change(lambda tx, owned: put(tx, owned, label, text, ADA, PutOptions(**options)))  # type: ignore[arg-type]

    def texts(self) -> dict[str, str]:
        found = self.server.read(lambda tx: blocks.of_user(tx, Scope(), self.user_id))
        return {block.label: block.value for block in found}

    def versions(self) -> list[str]:
        found = self.server.read(lambda tx: history.page(tx, self.owned.chain.id, limit=1000))
        return list(dict.fromkeys(version.id.hex() for version in reversed(found)))

    def waiting(self) -> list[Proposal]:
        return self.server.read(lambda tx: proposals.waiting(tx, self.owned.chain.id))

    @property
    def owned(self) -> UserMemory:
        return self.server.read(lambda tx: open_memory(tx, Scope(), self.name))

    @property
    def user_id(self) -> str:
        return self.owned.user.id

    def change(self, work: object) -> None:
        self.server.write(lambda tx: work(tx, open_memory(tx, Scope(), self.name, makes=True)))  # type: ignore[operator]


@pytest.fixture
def memory(server: ServerInThread) -> Memory:
    memory = Memory(server)
    memory.put("human", "Name: Ada\nLikes tea")
    memory.put("courses/maths", "Likes proofs. Übt täglich.\n", message="Add maths")
    return memory


@pytest.fixture
def clone(memory: Memory, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "-q", memory.url, "mine")
    return tmp_path / "mine"


def commit(clone: Path, message: str = "By hand", **files: str | None) -> str:
    """Write the files, remove those with None, and commit; return the id.

    In a name `__` stands for a slash.
    """
    for name, text in files.items():
        path = clone / f"{name.replace('__', '/')}.md"
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", message)
    return git(clone, "rev-parse", "HEAD")


def test_a_clone_has_the_databases_ids_and_passes_fsck(
    memory: Memory, clone: Path, tmp_path: Path
) -> None:
    for version in ("0", "1"):  # older clients use these versions
        git(tmp_path, "-c", f"protocol.version={version}", "clone", "-q", memory.url, version)
        assert ids(tmp_path / version) == memory.versions()
    assert ids(clone) == memory.versions()
    assert fsck(clone) == ""
    assert git(clone, "branch", "--show-current") == "main"
    assert (clone / "courses/maths.md").read_bytes() == "Likes proofs. Übt täglich.\n".encode()
    assert git(clone, "log", "-1", "--format=%an|%s") == "Ada|Add maths"


# The first clone leaves out contents, the second also folders, and the third old versions.
PARTIAL = (
    "blob:none",
    "tree:0",
    "blob:none --depth=1",
    "blob:limit=10",
    "blob:none --no-checkout",
    "blob:limit=1k",
)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("0", PARTIAL[0]),
        *(("2", options) for options in PARTIAL[:3]),
        *(pytest.param("0", options, marks=pytest.mark.soak) for options in PARTIAL[1:]),
        *(pytest.param("2", options, marks=pytest.mark.soak) for options in PARTIAL[3:]),
    ],
)
def test_a_partial_clone_fetches_missing_objects_on_demand(
    memory: Memory, tmp_path: Path, options: str, version: str
) -> None:
    for number in range(4):
        memory.put(
            "human",
            f"Name: Ada\nLikes tea, {number} times a day and more",
            message=f"Change {number}",
        )
    kind, *more = options.split()
    asks = [
        "-c",
        f"protocol.version={version}",
        "clone",
        "-q",
        f"--filter={kind}",
        *more,
        memory.url,
        "part",
    ]
    git(tmp_path, *asks)
    part = tmp_path / "part"
    git(part, "checkout", "-q", "main")
    assert (part / "human.md").read_text() == memory.texts()["human"]
    assert (part / "courses/maths.md").read_bytes() == "Likes proofs. Übt täglich.\n".encode()
    if "--depth=1" not in more:
        assert ids(part) == memory.versions()
        assert "Likes tea, 1 times" in git(part, "log", "-p", "--format=%s")
        git(part, "checkout", "-q", memory.versions()[-3])
        assert "2 times" not in (part / "human.md").read_text()
        git(part, "checkout", "-q", "main")
    memory.put("human", "Name: Ada\nLikes coffee")
    git(part, "pull", "-q")
    assert (part / "human.md").read_text() == "Name: Ada\nLikes coffee"
    assert fsck(part) == ""
    # A commit in this clone can be pushed.
    commit(part, human="Name: Ada\nLikes coffee and cake")
    git(part, "push", "-q")
    assert memory.texts()["human"] == "Name: Ada\nLikes coffee and cake"


def test_a_shallow_clone_can_pull_changes_back_to_older_texts(
    memory: Memory, tmp_path: Path
) -> None:
    old = memory.texts()["human"]
    memory.put("human", "Name: Ada\nLikes cocoa")
    git(tmp_path, "clone", "-q", "--depth", "1", memory.url, "mine")
    for text in ("Name: Ada\nLikes water", old, "Name: Ada\nLikes cocoa"):
        memory.put("human", text)
        git(tmp_path / "mine", "pull", "-q")
        assert (tmp_path / "mine/human.md").read_text() == text
        assert fsck(tmp_path / "mine") == ""


def test_later_changes_can_be_pulled(memory: Memory, clone: Path) -> None:
    memory.change(lambda tx, owned: rename(tx, owned, "human", "me", ADA))
    memory.put("me", "Name: Ada\nLikes coffee")
    memory.change(lambda tx, owned: delete(tx, owned, "courses/maths", ADA))

    git(clone, "pull", "-q")

    assert ids(clone) == memory.versions()
    assert sorted(path.name for path in clone.iterdir() if path.name != ".git") == ["me.md"]
    assert git(clone, "pull") == "Already up to date."


def test_a_shallow_clone_can_be_deepened_and_pushed_from(memory: Memory, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", memory.url, "mine")
    clone = tmp_path / "mine"
    assert ids(clone) == memory.versions()[-1:]
    pushed = commit(clone, human="Short")
    git(clone, "push", "-q")
    assert memory.versions()[-1] == pushed
    git(clone, "fetch", "-q", "--unshallow")
    assert ids(clone) == memory.versions()


def test_an_empty_memory_can_be_cloned_and_pushed_to(
    server: ServerInThread, tmp_path: Path
) -> None:
    memory = Memory(server)
    git(tmp_path, "clone", "-q", memory.url, "mine")
    pushed = [commit(tmp_path / "mine", human="One"), commit(tmp_path / "mine", human="Two")]
    git(tmp_path / "mine", "push", "-q", "origin", "HEAD:main")
    assert memory.versions() == pushed
    assert memory.texts() == {"human": "Two"}


def test_pushed_commits_become_versions_with_the_same_ids(memory: Memory, clone: Path) -> None:
    first = commit(clone, "Learn more\n\nAnd why", human="Name: Ada\nLikes coffee", garden="Roses")
    second = commit(clone, garden="Roses\nTulips", courses__maths=None)

    done = run_git(clone, "push")

    assert memory.versions()[-2:] == [first, second]
    assert memory.texts() == {"human": "Name: Ada\nLikes coffee", "garden": "Roses\nTulips"}
    assert "remote: garden.md is a new version now." in done.stderr
    newest = memory.server.read(
        lambda tx: history.page(tx, memory.owned.chain.id, label="human", limit=1)
    )[0]
    assert (newest.id.hex(), newest.reason, newest.author.kind) == (
        first,
        "Learn more\n\nAnd why\n",
        "user",
    )
    block = next(
        one for one in memory.server.read(lambda tx: blocks.of_user(tx, Scope(), memory.user_id))
    )
    assert (block.label, block.policy, block.head and block.head.hex()) == (
        "garden",
        "propose",
        second,
    )


def test_a_pushed_commit_is_the_users_own_only_with_a_known_email_address(
    memory: Memory, clone: Path
) -> None:
    """A commit is the user's if its author has the user's e-mail address.

    If the user has no address, the author of the newest commit counts as the user.
    """
    memory.server.write(
        lambda tx: set_email("bob@school.example")(tx, open_memory(tx, Scope(), "bob", makes=True))
    )
    bob = memory.server.read(lambda tx: users.require(tx, Scope(), "bob"))

    def pushed(*authors: str) -> list[tuple[str, str, str | None]]:
        for number, author in enumerate(authors):
            (clone / "human.md").write_text(f"{author} {number}")
            git(clone, "commit", "-qam", "By hand", "--author", author)
        git(clone, "push", "-q")
        newest = memory.server.read(
            lambda tx: history.page(tx, memory.owned.chain.id, limit=len(authors))
        )
        return [(one.author.kind, one.author.id, one.approved_by) for one in reversed(newest)]

    ada, forged = (
        memory.user_id,
        [f"B <{bob.id}@ricordo>", "Bob <BOB@school.example>", "Nina <agent-1@ricordo>"],
    )
    others = [("remote", name, ada) for name in ("B", "Bob", "Nina")]
    mine = ("user", ada, None)
    assert pushed("Ada <ada@home.example>", *forged, f"Me <{ada}@ricordo>") == [mine, *others, mine]
    memory.change(set_email("ada@school.example"))
    assert pushed("Ada <ada@school.example>", "Ada <ada@home.example>") == [
        mine,
        ("remote", "Ada", ada),
    ]
    path = f"{memory.url.removesuffix('memory.git')}blocks/human"
    assert httpx2.get(f"{path}/blame").json()["versions"][0]["author"] == "remote:Ada"
    assert [one["author"] for one in httpx2.get(f"{path}/history", params={"limit": 4}).json()] == [
        "remote:Ada",
        memory.name,
        memory.name,
        "remote:Nina",
    ]


def test_a_clone_and_the_api_name_the_same_authors(memory: Memory, tmp_path: Path) -> None:
    by = [
        Actor("user", memory.user_id, memory.name),
        Actor("agent", "agent-1", "Nina"),
        Actor("service", "key-1", "tutor for ada"),
        Actor("administrator", "user-2", "Bo <the boss>"),
        Actor("remote", "Eve", "Eve"),
    ]
    for number, actor in enumerate(by):
        metadata = ChangeMetadata(actor, f"Edit {number}", approved_by=memory.user_id)
        memory.change(
            lambda tx, owned, number=number, it=metadata: put(
                tx, owned, "human", f"Line {number}", it
            )
        )

    git(tmp_path, "clone", "-q", memory.url, "mine")

    path = f"{memory.url.removesuffix('memory.git')}blocks/human/history"
    told = httpx2.get(path, params={"limit": len(by)}).json()
    written = git(
        tmp_path / "mine", "log", f"-{len(by)}", "--format=%H%x09%an%x09%ae", "--", "human.md"
    ).splitlines()
    read = [
        (sha, author_of(name, address))
        for sha, name, address in (line.split("\t") for line in written)
    ]
    assert read == [(one["sha"], actor) for one, actor in zip(told, reversed(by), strict=True)]
    assert [(one["author"], one["author_kind"], one["author_id"]) for one in told] == [
        (actor.shown_name, actor.kind, actor.id) for actor in reversed(by)
    ]


def test_a_commit_made_as_another_user_gets_a_remote_author(memory: Memory, clone: Path) -> None:
    memory.server.write(
        lambda tx: set_email("eve@school.example")(tx, open_memory(tx, Scope(), "eve", makes=True))
    )
    (clone / "human.md").write_text("Forged")
    run_git(clone, "commit", "-qam", "x", email="eve@school.example")
    git(clone, "push", "-q")
    newest = memory.server.read(lambda tx: history.page(tx, memory.owned.chain.id, limit=1))[0]
    assert (newest.author, newest.approved_by) == (Actor("remote", "Ada", "Ada"), memory.user_id)


def test_pushed_commits_can_be_cloned_after_the_repository_was_lost(
    memory: Memory, clone: Path, tmp_path: Path, server: ServerInThread
) -> None:
    pushed = commit(clone, human="Pushed")
    git(clone, "push", "-q")
    memory.put("human", "Pushed\nand written")
    for each in (server.settings.data_dir / "repositories").glob(
        f"{memory.owned.chain.id}.git/**/*.pack"
    ):
        each.unlink()

    git(tmp_path, "clone", "-q", memory.url, "again")

    assert ids(tmp_path / "again") == memory.versions()
    assert pushed in memory.versions()
    assert fsck(tmp_path / "again") == ""
    git(clone, "pull", "-q")
    assert (clone / "human.md").read_text() == "Pushed\nand written"


def test_a_merge_keeps_its_side_branch(memory: Memory, clone: Path, tmp_path: Path) -> None:
    side = commit(clone, "Mine", human="Name: Ada\nLikes coffee", courses__latin="Salve")
    memory.put("courses/maths", "Likes topology.")
    assert run_git(clone, "push", check=False).returncode == 1
    git(clone, "pull", "-q", "--no-edit")
    merge = git(clone, "rev-parse", "HEAD")

    git(clone, "push", "-q")
    memory.put("human", "Name: Ada")

    assert memory.versions()[-2] == merge
    assert side not in memory.versions()
    git(tmp_path, "clone", "-q", memory.url, "again")
    assert fsck(tmp_path / "again") == ""
    assert (
        git(tmp_path / "again", "rev-parse", "HEAD~1^1", "HEAD~1^2")
        == f"{side}\n{memory.versions()[-3]}"
    )
    git(clone, "pull", "-q")
    assert git(clone, "rev-parse", "HEAD") == memory.versions()[-1]


def test_an_empty_commit_is_kept(memory: Memory, clone: Path, tmp_path: Path) -> None:
    before = memory.versions()
    git(clone, "commit", "-q", "--allow-empty", "-m", "Nothing")
    git(clone, "push", "-q")
    git(tmp_path, "clone", "-q", memory.url, "again")
    assert git(tmp_path / "again", "log", "-1", "--format=%s") == "Nothing"
    memory.put("human", "More")
    git(tmp_path / "again", "pull", "-q")
    git(tmp_path, "clone", "-q", memory.url, "third")
    assert len(ids(tmp_path / "third")) == len(before) + 2
    assert (memory.versions()[:-1], fsck(tmp_path / "third")) == (before, "")


def refused_push(clone: Path, *arguments: str) -> str:
    done = run_git(clone, "push", *arguments, check=False)
    assert done.returncode == 1, done.stderr
    return " ".join(done.stderr.split())


def test_a_push_of_invalid_files_is_refused_with_each_file_and_line(
    memory: Memory, clone: Path
) -> None:
    before, rows = memory.versions(), memory.server.rows()
    (clone / "notes.txt").write_bytes(b"x")
    (clone / "link.md").symlink_to("human.md")
    commit(clone, "Bad", human="a\nkey: sk-abcdefghijklmnopqrst\n")
    said = refused_push(clone)
    for words in (
        "notes.txt: each file is",
        "human.md, line 2: this looks like a password",
        "link.md: only plain files",
    ):
        assert words in said
    assert "[remote rejected] main -> main" in said
    assert (memory.versions(), memory.server.rows()) == (before, rows)


def test_pushes_that_would_lose_history_are_refused(memory: Memory, clone: Path) -> None:
    before = memory.versions()
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    commit(clone, human="Other")
    for arguments, words in (
        (("--force",), "a forced push is refused"),
        (("origin", ":main"), "cannot be deleted"),
        (("origin", "HEAD:refs/tags/one"), "Memory keeps no other tags"),
        (("origin", "HEAD:other"), "Memory keeps no other branches"),
    ):
        assert words in refused_push(clone, *arguments)
    assert memory.versions() == before


def test_a_push_to_a_propose_branch_creates_proposals_only(memory: Memory, clone: Path) -> None:
    before = memory.texts()
    commit(clone, "She said so", human="Name: Ada\nLikes coffee", garden="Roses")
    done = run_git(clone, "push", "origin", "HEAD:propose/coffee")
    assert memory.texts() == before
    made = {one.label: (one.value, one.reasoning) for one in memory.waiting()}
    assert made == {
        "human": ("Name: Ada\nLikes coffee", "She said so"),
        "garden": ("Roses", "She said so"),
    }
    assert "remote: human.md is proposed as proposal-" in done.stderr
    git(clone, "fetch", "-q", "--prune")
    assert "propose" not in git(clone, "branch", "-r")


def test_a_proposal_from_an_older_commit_merges_with_newer_changes(
    memory: Memory, clone: Path
) -> None:
    commit(clone, human="Name: Ada\nLikes coffee", courses__maths="Other")
    memory.put("human", "She is\nName: Ada\nLikes tea")
    git(clone, "push", "-q", "origin", "HEAD:propose/x")
    assert {one.label: one.value for one in memory.waiting()} == {
        "human": "She is\nName: Ada\nLikes coffee",
        "courses/maths": "Other",
    }
    memory.put("courses/maths", "Third")
    assert "courses/maths.md: the same lines changed" in refused_push(
        clone, "origin", "HEAD:propose/y"
    )


def test_other_line_ends_and_unicode_forms_cause_no_conflict(memory: Memory, clone: Path) -> None:
    memory.put("human", "Name: Zoë\nLikes tea\nCity: Turin\n")
    git(clone, "pull", "-q")
    written = unicodedata.normalize("NFD", "\ufeffName: Zoë\r\nLikes tea\r\nCity: Rome\r\n")
    commit(clone, human=written)
    memory.put("human", "Name: Zoë Rossi\nLikes tea\nCity: Turin\n")
    git(clone, "push", "-q", "origin", "HEAD:propose/x")
    assert {one.label: one.value for one in memory.waiting()} == {
        "human": "Name: Zoë Rossi\nLikes tea\nCity: Rome\n"
    }


def test_a_push_of_unnormalized_texts_adds_a_normalized_version(
    memory: Memory, clone: Path
) -> None:
    memory.put("human", "line one\nline two\nline three\n")
    git(clone, "pull", "-q")
    texts = {
        "human": "line one\r\nline 2\r\nline three\r\n",
        "plans": "\ufeffone\r\ntwo",
        "mac": "old\rends",
        "accents": unicodedata.normalize("NFD", "Grüße, Zoë"),
        unicodedata.normalize("NFD", "Grüße"): "a label",
    }
    commit(clone, **texts)
    pushed = git(clone, "rev-parse", "HEAD").strip()
    assert (
        "Fetch it before you commit again" in run_git(clone, "push", "origin", "HEAD:main").stderr
    )
    # The commit stays unchanged, and a new commit on top of it normalizes its texts.
    assert pushed in memory.versions()
    git(clone, "pull", "-q")
    assert git(clone, "merge-base", "HEAD", pushed).strip() == pushed
    wanted = {
        "human": "line one\nline 2\nline three\n",
        "plans": "one\ntwo",
        "mac": "old\nends",
        "accents": "Grüße, Zoë",
        "Grüße": "a label",
    }
    there = {path.stem: path.read_bytes().decode() for path in clone.glob("*.md")}
    assert there | wanted == there
    assert not any(unicodedata.is_normalized("NFD", name) and not name.isascii() for name in there)
    # From now on an edit of one line changes one line of the diff.
    memory.put("human", "line one\nline 2\nline 3\n")
    git(clone, "pull", "-q")
    assert git(clone, "diff", "--numstat", "HEAD~1").split()[:2] == ["1", "1"]


def test_gzip_compressed_git_requests_are_accepted(
    memory: Memory, clone: Path, http: httpx2.Client
) -> None:
    url = f"/users/{memory.name}/memory.git/git-upload-pack"
    kind = {"content-type": "application/x-git-upload-pack-request"}
    tip = memory.versions()[-1]
    body = f"0079want {tip} side-band-64k ofs-delta thin-pack no-progress agent=x".ljust(120) + "\n"
    body = f"{len(body):04x}{body[4:]}00000009done\n"
    plain = http.post(url, content=body.encode(), headers=kind)
    packed = http.post(
        url, content=gzip.compress(body.encode()), headers={**kind, "content-encoding": "gzip"}
    )
    assert plain.status_code == 200
    assert b"PACK" in plain.content
    assert packed.content == plain.content


@pytest.mark.parametrize("service", ["git-upload-pack", "git-receive-pack"])
def test_malformed_git_requests_are_refused(
    memory: Memory, http: httpx2.Client, service: str
) -> None:
    rows = memory.server.rows()
    kind = {"content-type": f"application/x-{service}-request"}
    zipped = {"content-encoding": "gzip"}
    for content, headers, status in (
        (b"0000", {"content-type": "text/plain"}, 400),
        (b"0000", {"content-encoding": "br"}, 400),
        (b"no gzip", zipped, 400),
        (gzip.compress(b"0000" * 9, mtime=0)[:-4], zipped, 400),
        (gzip.compress(b"0" * 2_000_000, mtime=0), zipped, 422),
        (b"zzzz", {}, 400),
        (b"0009want\n", {}, 400),
        (b"0032want 0123456789012345678901234567890123456789\n0000", {}, 400),
        (b"0000", {}, 200),
    ):
        url = f"/users/{memory.name}/memory.git/{service}"
        answer = http.post(url, content=content, headers={**kind, **headers})
        assert answer.status_code == status, (content[:20], headers, answer.text)
    packed = http.post(url, content=b"0000", headers={**kind, "content-encoding": "br"})
    assert "has the encoding br, which is not supported. Send it plain or with gzip." in packed.text
    assert memory.server.rows() == rows


def test_a_gzip_bomb_is_decompressed_only_up_to_the_limit(
    memory: Memory, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []
    decompressobj = zlib.decompressobj

    class Counting:
        """Unpacks objects, and counts their bytes."""

        def __init__(self, *how: int) -> None:
            self.real = decompressobj(*how)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            found: bytes = self.real.decompress(data, most)
            unpacked.append(len(found))
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    bomb = gzip.compress(bytes(100_000_000))
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    kind = {"content-type": "application/x-git-receive-pack-request", "content-encoding": "gzip"}
    answer = http.post(
        f"/users/{memory.name}/memory.git/git-receive-pack", content=bomb, headers=kind
    )
    assert (answer.status_code, "unpacks to more than 1048576 bytes" in answer.text) == (422, True)
    assert (max(unpacked) <= 2**20, sum(unpacked) <= 2**22) == (True, True)


def test_an_oversized_push_is_refused_with_a_message_that_git_shows(
    memory: Memory, clone: Path
) -> None:
    """Git shows no response before it has sent everything, so the server reads the rest."""
    before, rows = memory.versions(), memory.server.rows()
    (clone / "noise.md").write_bytes(random.Random(1).randbytes(3_000_000))  # noqa: S311
    commit(clone, "Noise")
    said = refused_push(clone)
    assert "remote: This push is longer than 1 MB, the limit of one push." in said
    assert "[remote rejected] main -> main" in said
    assert (memory.versions(), memory.server.rows()) == (before, rows)


def test_one_of_several_simultaneous_pushes_is_accepted(
    memory: Memory, clone: Path, tmp_path: Path
) -> None:
    clones = [clone]
    for number in range(3):
        git(tmp_path, "clone", "-q", memory.url, f"{number}")
        clones.append(tmp_path / f"{number}")
    pushed = [
        commit(each, f"From {number}", human=f"From {number}") for number, each in enumerate(clones)
    ]
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda each: run_git(each, "push", check=False), clones))
    (first,) = [number for number, one in enumerate(done) if one.returncode == 0]
    assert memory.versions()[-1] == pushed[first]
    assert memory.texts()["human"] == f"From {first}"
    for one in done[:first] + done[first + 1 :]:
        said = " ".join(one.stderr.split())
        assert "Fetch and merge first" in said or "fetch first" in said, said


def test_an_interrupted_push_changes_nothing(
    memory: Memory, clone: Path, server: ServerInThread
) -> None:
    """The client is killed while it sends, so the server gets only a part of the push."""
    new = commit(clone, human="Never")
    command = f"{memory.versions()[-1]} {new} refs/heads/main\0report-status".encode()
    head = f"{len(command) + 4:04x}".encode() + command + b"0000"
    sent = subprocess.run(
        ["git", "pack-objects", "--revs", "--stdout", "-q"],
        cwd=clone,
        input=b"main\n^main~1\n",
        capture_output=True,
        check=True,
    ).stdout
    rows = server.rows()
    port = int(server.url.rpartition(":")[2])
    path = memory.url.removeprefix(server.url) + "/git-receive-pack"
    for cut in (0, len(head) - 2, len(head), len(head) + 20, len(head) + len(sent) - 1):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: "
                "application/x-git-receive-pack-request\r\nContent-Length: "
                f"{len(head) + len(sent)}\r\n\r\n".encode()
                + (head + sent)[:cut]
            )
    assert (server.rows(), memory.texts()["human"]) == (rows, "Name: Ada\nLikes tea")
    git(clone, "push", "-q")
    assert memory.versions()[-1] == new


def test_missing_memories_and_services_are_refused(
    memory: Memory, http: httpx2.Client, tmp_path: Path
) -> None:
    assert http.get("/users/nobody/memory.git/info/refs?service=git-upload-pack").status_code == 404
    assert http.get(f"/users/{memory.name}/memory.git/info/refs").status_code == 400
    assert (
        "not found"
        in run_git(tmp_path, "clone", memory.url.replace("ada", "eve"), check=False).stderr
    )


KEY = "a-long-secret"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("locked"), api_key=KEY) as server:
        yield server


def test_an_api_key_is_the_password_for_git(locked: ServerInThread, tmp_path: Path) -> None:
    memory = Memory(locked)
    memory.put("human", "Name: Ada")
    for refused_url in (memory.url, memory.url.replace("://", "://ada:wrong@")):
        assert "Authentication failed" in run_git(
            tmp_path, "clone", refused_url, "no", check=False
        ).stderr or (
            "could not read Username"
            in run_git(tmp_path, "clone", refused_url, "no", check=False).stderr
        )
    url = memory.url.replace("://", f"://ada:{KEY}@")
    git(tmp_path, "clone", "-q", url, "mine")
    pushed = commit(tmp_path / "mine", human="Name: Ada Lovelace")
    git(tmp_path / "mine", "push", "-q")
    assert memory.versions()[-1] == pushed
    bearer = f"http.extraHeader=Authorization: Bearer {KEY}"
    git(tmp_path, "-c", bearer, "clone", "-q", memory.url, "again")
    assert ids(tmp_path / "again") == memory.versions()


def test_basic_authentication_works_only_for_git(locked: ServerInThread) -> None:
    with locked.http(auth=("ada", KEY)) as http:
        answer = http.get("/v1/agents/")
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers
