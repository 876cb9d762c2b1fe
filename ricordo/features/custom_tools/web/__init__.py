"""The tools `web_search` and `fetch_webpage`."""
