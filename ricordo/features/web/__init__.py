"""The pages for people: server-rendered, below `/ui`, and `/` itself. They load nothing from anywhere else."""

from typing import Any

STATIC = "/ui/static"
# The styles and scripts, which anybody may load.
TYPES = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class WebPlugin:
    requires = ("audit",)

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        pages = "ricordo.features.web"
        return [
            LazyRouter(f"{pages}.home", ("/", "/ui/first")),
            LazyRouter(f"{pages}.decisions", ("/ui/proposals",)),
            LazyRouter(f"{pages}.agents", ("/ui/agents",)),
            LazyRouter(f"{pages}.chat", ("/ui/agents/*/chat",)),
            LazyRouter(f"{pages}.context", ("/ui/agents/*/context",)),
            LazyRouter(f"{pages}.archive", ("/ui/agents/*/archive",)),
            LazyRouter(f"{pages}.answers", ("/ui/answers",)),
            LazyRouter(f"{pages}.personal_data", ("/ui/people/*", "/ui/receipts")),
            # A label may hold slashes: what can follow one is matched first.
            LazyRouter(f"{pages}.history", ("/ui/people", "/ui/blocks")),
            LazyRouter(f"{pages}.memory", ("/ui/people", "/ui/blocks", "/ui/agents/*/memory")),
            LazyRouter(f"{pages}.search", ("/ui/search",)),
            LazyRouter(f"{pages}.runs", ("/ui/runs", "/ui/jobs")),
            LazyRouter(f"{pages}.models", ("/ui/models",)),
            LazyRouter(f"{pages}.connect", ("/ui/connect",)),
            LazyRouter(f"{pages}.settings", ("/ui/settings",)),
            LazyRouter(
                f"{pages}.statics", (STATIC,), open=tuple(f"{STATIC}/{name}" for name in TYPES)
            ),
            # The last, as it has a page for every other address below /ui too.
            LazyRouter(f"{pages}.login", ("/ui",), open=("/ui/login",), login="/ui/login"),
        ]


plugin = WebPlugin()
