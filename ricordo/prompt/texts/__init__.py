"""Texts for models, one file each.

The system prompts have public keys. Each other text belongs to one module.
"""

from functools import cache
from importlib import resources

# The keys of the system prompts.
BUILT_IN = (
    "letta_v1",
    "memgpt_chat",
    "memgpt_generate_tool",
    "memgpt_v2_chat",
    "react",
    "sleeptime_doc_ingest",
    "sleeptime_v2",
    "summary_system_prompt",
    "voice_chat",
    "voice_sleeptime",
    "workflow",
)


@cache
def text(key: str) -> str:
    return resources.files(__package__).joinpath(f"{key}.md").read_text("utf-8").strip()


@cache
def all_texts() -> tuple[str, ...]:
    """Return all texts, including those that only one module uses."""
    files = sorted(
        file.name for file in resources.files(__package__).iterdir() if file.name.endswith(".md")
    )
    return tuple(text(name.removesuffix(".md")) for name in files)
