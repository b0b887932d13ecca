"""The built site, walked page by page in a real browser: links, images, the console, phones, light and dark.

`make docs` builds it; without it these tests are skipped, and fail in CI.
"""

import functools
import http.server
import json
import os
import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

from browsing import CONTRASTS, Page

pytestmark = [pytest.mark.slow, pytest.mark.x64("the site is the same in both precisions: once is enough")]

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "_build" / "html"
LOADED = "Promise.all([...document.images].map(i => i.decode().catch(() => 0))).then(arguments[0])"
MISSING = "return [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
OVERFLOW = """
const wide = document.documentElement.clientWidth;
const found = [...document.querySelectorAll('body *')].filter(n => {
  const box = n.getBoundingClientRect();
  if (!box.width || box.right <= wide + 1) return false;
  for (let p = n.parentElement; p; p = p.parentElement)
    if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(p).overflowX)) return false;
  return getComputedStyle(n).position !== 'fixed';
}).map(n => n.tagName + '.' + n.className);
return document.documentElement.scrollWidth > wide ? ['page scrolls', ...found.slice(0, 3)] : [];
"""


class Anchors(HTMLParser):
    """Links, pictures and ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links |= {found[name] for name in ("href", "src") if found.get(name)}


def wait(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda _: condition())


@pytest.fixture(scope="module")
def pages():
    if not (SITE / "index.html").exists():
        missing = "needs the site: make docs"
        pytest.fail(missing) if os.environ.get("ERGODRIFT_CI") else pytest.skip(missing)
    names = [str(page.relative_to(SITE)) for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
    return {name: Anchors((SITE / name).read_text()) for name in names}


@pytest.fixture(scope="module")
def address(pages):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):  # noqa: A002
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_no_link_is_broken(pages):
    """Files and the places in them; what is elsewhere on the network is not asked for."""
    broken = []
    for name, page in pages.items():
        for link in page.links:
            target, place = urldefrag(urljoin(f"http://site/{name}", link))
            if urlparse(target).netloc != "site" or not target.startswith("http"):
                continue
            path = unquote(urlparse(target).path).lstrip("/") or "index.html"
            known = pages.get(path)
            if not (SITE / path).exists() or (place and known and unquote(place) not in known.ids):
                broken.append(f"{name} -> {link}")
    assert not broken


def test_all_pages_are_reached_from_the_first(pages):
    reached, waiting = set(), {"index.html"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        targets = {urldefrag(urljoin(f"http://site/{name}", link))[0] for link in pages[name].links}
        waiting |= {path for path in pages if f"http://site/{path}" in targets} - reached
    lost = set(pages) - reached - {"genindex.html", "py-modindex.html", "search.html"}
    assert not lost


def test_nothing_is_asked_of_the_network(pages):
    for name in pages:
        text = (SITE / name).read_text()
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//(?!github\.com)[^"]*"', text), name


def test_every_page_in_a_browser(browser, pages, address):
    """Loaded once each; then on a phone, and in the dark."""
    page, troubles = Page(browser), []
    for name in pages:
        page.width(1200)
        page.scheme("light")
        browser.get(address + name)
        page.script("document.querySelectorAll('img[loading=lazy]').forEach(i => i.loading = 'eager')")
        for width, scheme in [(1200, "light"), (390, "light"), (390, "dark")]:
            page.width(width)
            page.scheme(scheme)
            troubles += [(name, width, scheme, what) for what in page.script(OVERFLOW)]
        wait(browser, lambda: page.script("return document.documentElement.dataset.theme") == "dark")
        browser.set_script_timeout(10)
        browser.execute_async_script(LOADED)
        troubles += [(name, "picture", source) for source in page.script(MISSING)]
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        troubles += [(name, entry["message"]) for entry in severe]
    assert not troubles


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "choose.html", "start/first.html", "reference/glossary.html"])
def test_text_can_be_read(browser, pages, address, name, scheme):
    """Contrast of at least 4.5 to 1, the rule of WCAG for text of ordinary size."""
    page = Page(browser)
    page.width(1200)
    page.scheme(scheme)
    browser.get(address + name)
    assert not [(text, ratio) for text, ratio in page.script(CONTRASTS) if ratio < 4.5]


def test_search_finds_a_word(browser, pages, address):
    browser.get(address + "search.html?q=undecided")
    wait(browser, lambda: browser.find_elements("css selector", "#search-results li a"))


def test_every_gallery_script_downloads_as_script_and_notebook_and_names_what_it_needs(pages):
    scripts = sorted((ROOT / "examples").glob("plot_*.py"))
    assert scripts
    for script in scripts:
        assert "pip install" in script.read_text().split('"""')[1], f"{script.name} names no extra"
        links = pages[f"gallery/{script.stem}.html"].links
        for suffix in (".py", ".ipynb"):
            assert any(link.endswith(f"{script.stem}{suffix}") for link in links), script.name
        notebook = json.loads(next(SITE.glob(f"_downloads/*/{script.stem}.ipynb")).read_text())
        assert any(cell["cell_type"] == "code" for cell in notebook["cells"])


def test_llms_txt_leads_to_pages(pages):
    text = (SITE / "llms.txt").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 30
    assert not [target for target in targets if not (SITE / target).exists()]
