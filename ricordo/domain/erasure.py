"""Forgetting a user: how far it is, and the receipt that is given once all of it is done."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

KIND = "erasure"


@dataclass(frozen=True, slots=True)
class Erasure:
    """One user's erasure as its job keeps it, so that whoever finishes it knows what others have done.

    `subject` and `names` stand for her in the receipt: hashes, of her id and, keyed, of every name she is asked for by. `user_id`
    is empty once nothing needs it. `threads` are those of others in which she spoke, or that go on from one of hers; `agents` are
    those she talked with, each with the number of versions of its own memory that came of her turns; `spaces` are what searches
    look through and held her words, by owner, with the kind of what they hold; `began_at` is when she was first heard of.
    `own_agents` are to be deleted with her, and `kept_agents` are not, each with the reason. `remotes` are the addresses at which
    her memory was followed, each with its kind, until it is known which of them lie in the data folder.
    """

    id: str
    user_id: str
    organization_id: str
    subject: str
    names: tuple[str, ...]
    asked_at: int
    asked_by: str = ""
    began_at: int | None = None
    finished_at: int | None = None
    database: str = ""
    is_bare: bool = False
    threads: tuple[str, ...] = ()
    own_threads: tuple[str, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    remaining: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, int] = field(default_factory=dict)
    spaces: Mapping[str, str] = field(default_factory=dict)
    chains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    own_agents: tuple[str, ...] = ()
    kept_agents: Mapping[str, str] = field(default_factory=dict)
    remotes: Mapping[str, str] = field(default_factory=dict)

    def counted(self, what: str, count: int) -> "Erasure":
        """With so many more rows of this table removed."""
        return replace(self, removed=_more(self.removed, what, count))

    def rewritten(self, what: str, count: int) -> "Erasure":
        """With so many more of these changed, in rows that are others'."""
        return replace(self, changed=_more(self.changed, what, count))

    def seen(self, moments: Iterable[int], agents: Iterable[str]) -> "Erasure":
        """With what she did at these times, and the agents that she did it with."""
        known = [moment for moment in (self.began_at, *moments) if moment is not None]
        together = {**dict.fromkeys(agents, 0), **self.agents}
        return replace(self, began_at=min(known, default=None), agents=together)

    def caused(self, agent_id: str, versions: int) -> "Erasure":
        """With so many more versions of the agent's own memory that came of her turns."""
        return replace(self, agents=_more(self.agents, agent_id, versions))

    def spread(self, kind: str, owners: Iterable[str]) -> "Erasure":
        """With these spaces, whose index holds her words until it is merged."""
        return replace(self, spaces={**self.spaces, **dict.fromkeys(owners, kind)})

    def without_space(self, owner: str) -> "Erasure":
        """With this space gone as a whole."""
        return replace(self, spaces={name: kind for name, kind in self.spaces.items() if name != owner})

    def shared(self, threads: Iterable[str]) -> "Erasure":
        """With these threads of others, which show something of hers."""
        return replace(self, threads=tuple(dict.fromkeys((*self.threads, *threads))))

    def told(self, sentences: Iterable[str]) -> "Erasure":
        """With more that lies where we cannot reach."""
        return replace(self, elsewhere=tuple(dict.fromkeys((*self.elsewhere, *sentences))))

    def to_json(self) -> dict[str, Any]:
        """As it is kept with its job."""
        return asdict(self)


def erasure_of(values: Mapping[str, Any]) -> Erasure:
    """The mirror of `to_json`."""
    names = ("names", "threads", "own_threads", "elsewhere", "own_agents")
    lists = {name: tuple(values[name]) for name in names if name in values}
    return Erasure(**{**values, **lists})


def _more(counts: Mapping[str, int], what: str, count: int) -> dict[str, int]:
    # The names of tables are more than plain text, and a receipt is plain.
    return {**counts, str(what): counts.get(what, 0) + count} if count or what in counts else dict(counts)
