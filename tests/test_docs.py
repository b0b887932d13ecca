"""The README and the docs: code blocks run as they stand, commands parse, links lead somewhere, lines wrap."""

import re
import shlex
from pathlib import Path

import jax
import pytest

from ergodrift import cli

pytestmark = pytest.mark.x64("the docs set the precision themselves where it matters: once is enough")

ROOT = Path(__file__).parents[1]
MADE = {"_build", "gallery", "api"}  # by Sphinx
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not MADE & {*page.parts})]


def name(page):
    return str(page.relative_to(ROOT).with_suffix(""))


def with_code():
    """The pages that have any; those about networks in PyTorch need it."""
    for page in PAGES:
        text = page.read_text()
        if "```python" in text:
            yield pytest.param(page, id=name(page), marks=pytest.mark.torch if "import torch" in text else ())


@pytest.mark.slow
@pytest.mark.parametrize("page", list(with_code()))
def test_python_blocks_run_in_order(page, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    if "ergodrift.distributed" in page.read_text():
        request.getfixturevalue("cluster")  # walks join it; without Ray they are skipped
    scope = {"__name__": "__docs__"}
    promoting = "optax" in page.read_text()  # it promotes types itself, and who writes networks adds a bias to rows
    with (
        jax.numpy_dtype_promotion("standard" if promoting else "strict"),
        jax.numpy_rank_promotion("allow" if promoting else "raise"),
    ):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            exec(compile(block, str(page), "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_spelt_as_the_command_line_knows_them(page):
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        if line.startswith("ergodrift "):
            assert cli.build_parser().parse_args(shlex.split(line, comments=True)[1:]).run


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name)
def test_lines_wrap_at_100(page):
    """But for tables, code and links."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    wide = [
        line
        for line in prose.splitlines()
        if len(line) > 100 and not line.lstrip().startswith("|") and "](" not in line
    ]
    assert not wide


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_has_lost_a_line(page):
    """Blocks say what they hold and end; no paragraph begins in the middle of an item, no code stands among prose."""
    text = page.read_text()
    prose, *odd = re.split(r"^(```[^\n]*)", re.sub(r"^( *)```\S.*?^\1```$", "", text, flags=re.S | re.M), flags=re.M)
    assert not odd, "a block without a language, or without an end"
    paragraphs = re.sub(r"^(?: *[-*]|\d+\.) .*?(?=\n\S)", "", prose, flags=re.S | re.M)  # but for items
    assert not re.findall(r"\n\n( {1,3}[^\s|].*)", paragraphs)
    assert not re.findall(r"^(?:def|import|assert) .*", prose, flags=re.M)


def test_choose_says_what_the_benchmark_found():
    """The page of advice repeats three counts of the page of results."""
    found = [" ".join((ROOT / "docs" / page).read_text().split()) for page in ("laboratory/peers.md", "choose.md")]
    counts = r"at most 1\.5 times the gap of the best competitor.*?on (\d+ of \d+).*?at most 3 times on (\d+)\."
    defaults = r"below the default setting of every peer on (\d+ of \d+)"
    for pattern in (counts, defaults):
        results, advice = (re.search(pattern, text) for text in found)
        assert results is not None
        assert advice is not None
        assert results.groups() == advice.groups()
