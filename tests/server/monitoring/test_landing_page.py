"""The page at `/`."""

from __future__ import annotations

from html.parser import HTMLParser

from kbroker.server.monitoring.landing_page import landing_page


class Page(HTMLParser):
    """Links and cells of a page; each tag is closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_names_the_node_and_links_to_the_rest() -> None:
    page = Page(landing_page({"Node": "7", "Cluster": "abc"}))
    assert page.links == ["/metrics", "/healthz", "/readyz"]
    assert "Node7" in page.text and "Clusterabc" in page.text


def test_text_is_no_markup() -> None:
    page = Page(landing_page({"Cluster": "<script>alert('x')</script>&amp;"}))
    assert "<script>alert('x')</script>&amp;" in page.text
