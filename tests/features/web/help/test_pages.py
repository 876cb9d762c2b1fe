"""`/help` shows every page of the documentation, without a dead link or picture."""

import re
from html import unescape

from ricordo.features.web.help.documentation import page_names
from tests.seams.server import ServerInThread

LINK = re.compile(r'(?:href|src)="([^"]*)"')


def test_every_help_page_is_served_and_its_links_work(
    server: ServerInThread,
) -> None:
    with server.http() as http:
        answers = {f"/help/{name}": http.get(f"/help/{name}") for name in page_names()}
        assert [path for path, answer in answers.items() if answer.status_code != 200] == []
        articles = {path: answer.text.split("<article", 1)[1] for path, answer in answers.items()}
        links = {
            (path, unescape(link))
            for path, article in articles.items()
            for link in LINK.findall(article)
            if link.startswith("/")
        }
        pictures = {link for _, link in links if link.startswith("/help/images/")}
        assert [link for link in pictures if http.get(link).status_code != 200] == []
        lost = [
            (path, link)
            for path, link in links
            if link not in pictures and not leads_somewhere(link, articles)
        ]
        assert lost == []


def leads_somewhere(link: str, pages: dict[str, str]) -> bool:
    path, _, fragment = link.partition("#")
    if path == "/help":
        return True
    return path in pages and (not fragment or f'id="{fragment}"' in pages[path])


def test_help_pages_are_found_by_index_and_short_name(server: ServerInThread) -> None:
    with server.http() as http:
        index = http.get("/help").text
        assert "<h1" in index
        assert 'href="/help/people/memory"' in index
        assert http.get("/help/memory").text == http.get("/help/people/memory").text


def test_unknown_help_pages_and_images_are_not_found(server: ServerInThread) -> None:
    with server.http() as http:
        for name in ("nothing", "people", "..%2f..%2fREADME", "people/memory.md", "%00", "a" * 500):
            assert http.get(f"/help/{name}").status_code == 404, name
        for name in ("nothing.png", "..%2f..%2fpyproject.toml"):
            assert http.get(f"/help/images/{name}").status_code == 404, name
