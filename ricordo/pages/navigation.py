"""The navigation of the pages: groups of entries that the caller's rights allow.

Everybody has Chat, Memory and Search, if the key allows them. Builders also see agents, people,
courses, files, tools and templates, and a few pages of the server. Administrators see its other
pages; those with data of all organizations need the right to see the whole server. All other pages
are behind "More".
"""

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from ricordo.domain.scope import ADMIN, NOBODY, Scope
from ricordo.plugins import PluginPage

# The chats of agents belong to the entry "Chat".
_CHAT = re.compile("/ui/agents/[^/]+/chat(/|$)")
# The rights of a person who builds agents.
_BUILDS = ("agents:write",)


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation.

    Attributes:
        title: The text of the entry.
        path: The path of the page; "" for a page that is found for each caller.
        icon: The name of the icon.
        scopes: A caller with one of these scopes sees the entry; without any, every caller does.
        also: The caller also needs one of these scopes, if there are any.
        is_here: The entry leads to the shown page.
        counts: The entry shows the number of open decisions.
        is_of_server: The page shows data of all organizations.
    """

    title: str
    path: str
    icon: str
    scopes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    is_here: bool = False
    counts: bool = False
    is_of_server: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Entries of the navigation. A group with `is_folded` is opened by a click on its title."""

    title: str
    links: tuple[Link, ...]
    is_folded: bool = False

    @property
    def is_here(self) -> bool:
        return any(link.is_here for link in self.links)


_PERSON = (
    Link("Chat", "/ui/chat", "chat", ("messages:read",), ("agents:read",)),
    Link("Memory", "", "memory", ("memory:read",), counts=True),
    Link("Search", "/ui/search", "search", ("messages:read",)),
)
_BUILDER = (
    Link("Agents", "/ui/agents", "agent", _BUILDS),
    Link("People", "/ui/people", "people", ("users:read",)),
    Link("Courses", "/ui/courses", "course", _BUILDS),
    Link("Files", "/ui/files", "file", _BUILDS, ("archives:read", "memory:read")),
    Link("Tools", "/ui/tools", "tool", ("tools:write",)),
    Link("Templates", "/ui/templates", "template", _BUILDS),
)
_MORE = (
    Link("Groups", "/ui/groups", "group", _BUILDS),
    Link("Sleeping agents", "/ui/sleeptime", "sleep", ("memory:read",), ("agents:read",)),
    Link("MCP servers", "/ui/mcp", "plug", ("tools:write",)),
    Link("Skills", "/ui/skills", "template", ("memory:read",)),
    Link("Notifications", "/ui/notifications", "wait", ("memory:approve",)),
    Link("Tasks", "/ui/tasks", "task", ("agents:read",)),
    Link("Schedules", "/ui/schedules", "clock", ("messages:read",), ("agents:read",)),
    Link("Workspace", "/ui/workspace", "folder", ("memory:read",)),
    Link("Moving in and out", "/ui/imports", "move", ("messages:read",)),
    Link("Connect", "/ui/connect", "link", ("agents:read", "messages:read", "memory:read")),
)
_SERVER = (
    Link("Runs", "/ui/runs", "run", _BUILDS, ("messages:read",)),
    Link("Jobs", "/ui/jobs", "job", (ADMIN,)),
    Link("Models", "/ui/models", "model", _BUILDS),
    Link("Audit log", "/ui/audit-log", "audit", (ADMIN,)),
    Link("Backups", "/ui/backups", "backup", (ADMIN,), is_of_server=True),
    Link("Users and keys", "/ui/settings", "key", (ADMIN,)),
    Link("Invitations", "/ui/invitations", "people", (ADMIN,)),
)
# Pages of the feature `web`. Other pages are shown if their feature is loaded.
_OWN = {
    "/ui/chat",
    "/ui/search",
    "/ui/agents",
    "/ui/people",
    "/ui/connect",
    "/ui/runs",
    "/ui/jobs",
    "/ui/models",
    "/ui/settings",
}
_KNOWN = {link.path for links in (_PERSON, _BUILDER, _MORE, _SERVER) for link in links}
_HELP = "/help"


@dataclass(frozen=True, slots=True)
class _Links:
    """The entries that a caller may see.

    Attributes:
        me: The caller.
        path: The path of the shown page.
        known_paths: The paths that this server has.
        sees_server: The caller may see data of all organizations.
    """

    me: Scope
    path: str
    known_paths: AbstractSet[str]
    sees_server: bool

    def visible(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return the links that the caller may open, with the shown page's link marked."""
        targets = [(link, link.path or own_memory(self.me)) for link in links if self._may(link)]
        return tuple(
            replace(link, path=target, is_here=_is_at(self.path, target))
            for link, target in targets
            if target
        )

    def _may(self, link: Link) -> bool:
        if link.path and link.path not in self.known_paths:
            return False
        if link.is_of_server and not self.sees_server:
            return False
        if link.also and not self.me.may(*link.also):
            return False
        return not link.scopes or self.me.may(*link.scopes)


def navigation(
    me: Scope, path: str, plugin_pages: Iterable[PluginPage], *, sees_server: bool
) -> list[Group]:
    """Return the groups of entries for this caller, without empty groups.

    Args:
        me: The caller.
        path: The path of the shown page, without the server's prefix; its entry is marked.
        plugin_pages: The pages of the loaded features and plugins.
        sees_server: The caller may see data of all organizations.
    """
    pages = {page.path: page for page in plugin_pages}
    others = tuple(
        Link(page.title, page.path, "help" if page.path == _HELP else "plugin", page.scopes)
        for page in pages.values()
        if page.path not in _KNOWN
    )

    links = _Links(me, path, _OWN | pages.keys(), sees_server)
    builds = me.may(*_BUILDS) or me.subject_id is None
    more = links.visible((*_MORE, *others))
    if me.subject_id == NOBODY:
        # What these pages show belongs to a user, and this key has no user.
        hidden = ("/ui/workspace", "/ui/sleeptime", "/ui/skills", "/ui/learning")
        more = tuple(link for link in more if link.path not in hidden)
    person = links.visible(_PERSON)
    groups = [
        Group("", person),
        Group("Build", links.visible(_BUILDER) if builds else ()),
        Group("More", more, is_folded=bool(person)),
        Group("Server", links.visible(_SERVER), is_folded=True),
    ]
    return _with_one_here([group for group in groups if group.links])


def first_page(me: Scope, plugin_pages: Iterable[PluginPage]) -> str:
    """Return the path of the first page of a caller who may not chat, read memory or see agents.

    The path is empty if the caller can use the home page, or if there is no other page.

    Args:
        me: The caller.
        plugin_pages: The pages of the loaded features and plugins.
    """
    if me.may("messages:read", "memory:read", "agents:read"):
        return ""
    paths = (page.path for page in plugin_pages if page.scopes and me.may(*page.scopes))
    return next(paths, "")


def own_memory(me: Scope) -> str:
    """Return the page of the caller's memory; empty for a caller without memory."""
    if me.role == "service" or me.subject_id == NOBODY or not me.user_id.startswith("user-"):
        return ""
    return f"/ui/people/{me.user_id}"


def _is_at(path: str, target: str) -> bool:
    if _CHAT.match(path):
        path = "/ui/chat"
    return f"{path}/".startswith(f"{target}/")


def _with_one_here(groups: list[Group]) -> list[Group]:
    """Keep the mark only on the entry with the longest path: "/ui/people/ID", not "/ui/people"."""
    longest = max(
        (len(link.path) for group in groups for link in group.links if link.is_here), default=0
    )
    return [
        replace(
            group,
            links=tuple(
                replace(link, is_here=link.is_here and len(link.path) == longest)
                for link in group.links
            ),
        )
        for group in groups
    ]
