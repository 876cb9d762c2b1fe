"""Settings of the sandbox."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about

UNSAFE = "none-i-accept-the-risk"


class SandboxSettings(FeatureSettings):
    """The sandbox in which code of users and models runs."""

    sandbox: Literal["auto", "bubblewrap", "landlock", "none-i-accept-the-risk"] = about(
        "What code of users and models runs in: bubblewrap, landlock, or the first of these that "
        "works here (auto). With none-i-accept-the-risk it runs as a plain process that can read "
        "and change whatever this server can.",
        "auto",
    )
    sandbox_network: bool = about(
        "Allow programs in the sandbox that ask for it to reach public addresses over HTTP and "
        "HTTPS.",
        False,
    )
    sandbox_calls: int = about(
        "Most programs that run in the sandbox at once; more wait. Programs of MCP servers are not "
        "counted.",
        16,
        ge=1,
        le=500,
    )
