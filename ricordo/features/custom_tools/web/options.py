"""Settings of the web tools."""

from typing import Literal

from ricordo.setting_types import Address, FeatureSettings, Key, about


class WebSettings(FeatureSettings):
    """The tools `web_search` and `fetch_webpage`."""

    web_search: Literal["", "searxng", "brave", "exa", "tavily"] = about(
        "The search engine of the tool `web_search`.", ""
    )
    web_search_url: Address | None = about(
        "Address of your SearXNG, such as http://127.0.0.1:8888; or an address to use instead of "
        "the other engines' usual one."
    )
    web_search_key: Key | None = about("Key for Brave, Exa or Tavily.")
    fetch_private_pages: bool = about(
        "Allow `fetch_webpage` to read pages of this machine and of private networks.", False
    )
