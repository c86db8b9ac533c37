"""Links lead somewhere, the reference names all that is public, and the site asks no other server."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import latentcal

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPACES = [name for name in latentcal.__all__ if isinstance(getattr(latentcal, name), ModuleType)]
PUBLIC = ("latentcal", *(f"latentcal.{name}" for name in SPACES))


def links(text: str) -> list[str]:
    """Targets of links and pictures within the project; what stands in code is no link."""
    text = re.sub(r"\[`[^`\n]*`\]", "[code]", FENCED.sub("", text))
    return [t for t in LINK.findall(re.sub(r"`[^`\n]*`", "", text)) if not re.match(r"[a-z]+:", t)]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, named as the site names them."""
    slugify = pytest.importorskip("markdown.extensions.toc").slugify
    headings = re.findall(r"^#+ +(.+?)\s*$", FENCED.sub("", text), re.MULTILINE)
    return {slugify(heading.replace("`", ""), "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for target in links(page.read_text()):
        name, _, anchor = target.partition("#")
        file = page if not name else (page.parent / name).resolve()
        inside = page == ROOT / "README.md" or file.is_relative_to(DOCS)  # of the site, only docs are built
        if not file.exists() or not inside or (anchor and anchor not in anchors(file.read_text())):
            found.append(target)
    return found


def paths() -> list[str]:
    """Dotted names that the reference pages describe."""
    pages = [page.read_text() for page in sorted((DOCS / "reference").glob("*.md"))]
    return [path for page in pages for path in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


def thing(path: str) -> object:
    """What a dotted name stands for."""
    parts = path.split(".")
    found: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_of_a_page_leads_somewhere(page):
    assert broken(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "DOCS", tmp_path)
    (tmp_path / "there.md").write_text("# A `heading` here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-heading-here) [`c`](gone.md) [d](there.md#no) ![e](gone.png) [f](#no)\n"
        "[g](https://example.org) `[h](gone.md)`\n\n```text\n[i](gone.md)\n```\n"
    )
    assert broken(page) == ["gone.md", "there.md#no", "gone.png", "#no"]


def navigation() -> ModuleType:
    """The module that orders the pages of the site."""
    specification = importlib.util.spec_from_file_location("site_navigation", DOCS / "navigation.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def listed(entry: object) -> list[str]:
    """Pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in listed(part)]


def test_the_navigation_has_every_page_once_under_what_a_reader_asks():
    found = navigation().navigation(DOCS)
    titles = [title for section in found for title in section]
    assert titles == [
        *("Start", "You have …", "Concepts", "Guides", "Results", "Reference", "Extending", "Changelog"),
    ]
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(listed(found)) == sorted([*pages, "changelog.md"])


def test_a_new_page_has_a_place_in_the_navigation(tmp_path):
    (tmp_path / "how_to").mkdir()
    (tmp_path / "how_to" / "something_new.md").write_text("# Do something new\n")
    section = next(part["Guides"] for part in navigation().navigation(tmp_path) if "Guides" in part)
    assert "how_to/something_new.md" in section


@pytest.mark.parametrize(
    "page", [*(DOCS / "how_to").glob("*.md"), *(DOCS / "start").glob("*.md")], ids=lambda p: p.stem
)
def test_titles_of_guides_are_short_and_no_questions(page):
    title = page.read_text().partition("\n")[0]
    assert re.fullmatch(r"# (?!How to|You have)[^?]{3,60}", title)


def test_every_block_of_code_names_a_language():
    """A slip here would leave a block that is neither run nor compared."""
    opened = {str(page): re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2] for page in PAGES}
    known = ("python", "text", "console", "sh", "json", "html", "csv")
    assert {page: odd for page, all_ in opened.items() if (odd := [o for o in all_ if o not in known])} == {}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_place_in_the_reference(module):
    described = [thing(path) for path in paths()]
    text = " ".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    names = importlib.import_module(module).__all__
    modules = {name for name in names if f"{module}.{name}" in PUBLIC}  # pages of their own
    absent = [
        name
        for name in names
        if name not in modules
        and importlib.import_module(module) not in described  # which shows all its names
        and not any(getattr(importlib.import_module(module), name) is other for other in described)
        and f"`{name}`" not in text
    ]
    assert absent == []


def test_nothing_is_described_twice():
    described = paths()
    assert sorted(set(described)) == sorted(described)
    assert latentcal.recalibrate in [thing(path) for path in described]


def test_the_citation_and_the_changelog_have_the_version_of_the_package():
    assert f"version: {latentcal.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    heading = re.compile(r"^## (\d\S+) - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
    (newest, day), *_ = heading.findall((ROOT / "CHANGELOG.md").read_text())
    assert newest == latentcal.__version__
    assert f"date-released: {day}\n" in (ROOT / "CITATION.cff").read_text()


def rows(page: str) -> list[list[str]]:
    """Rows of the tables of a page, headings included."""
    lines = re.findall(r"^\| (.*) \|$", (DOCS / page).read_text(), re.MULTILINE)
    return [line.split(" | ") for line in lines]


def test_the_page_on_security_lists_the_packages_of_the_project():
    pytest.importorskip("tomllib")
    from tools.licences import named_packages

    listed = {name: groups for name, groups, *_ in rows("concepts/security.md")}
    named = {name: ", ".join(groups) for name, groups in named_packages().items()}
    assert named == {name: listed.get(name) for name in named}, "run python tools/licences.py --write"


def test_the_page_of_versions_has_those_of_the_project():
    needed, pinned = (ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text()
    _, python, *packages = rows("reference/versions.md")
    assert f'requires-python = ">={python[1]}"' in needed
    assert len(packages) == 5
    for name, lowest, tested in packages:
        assert f'"{name}>={lowest}"' in needed
        assert f"{name}=={tested}\n" in pinned


class Requests(HTMLParser):
    """Addresses that a browser asks for when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.addresses.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(values.get("href") or "")


def outside(text: str) -> list[str]:
    """Addresses on other servers that a page asks for."""
    parser = Requests()
    parser.feed(text)
    return [address for address in parser.addresses if re.match(r"(https?:)?//", address)]


def test_the_site_is_built_without_a_warning_and_asks_no_other_server(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 20
    assert {path: outside(text) for path, text in pages.items() if outside(text)} == {}
    styles = "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", styles)
    # Docstrings and formulas came out as pages have them.
    assert not any(
        re.search(r"\.\. math::|:math:|:func:|class=\"arithmatex\"", text) for text in pages.values()
    )
    assert (
        '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">'
        in pages[tmp_path / "concepts" / "base_swap.html"]
    )
    assert "Changelog" in pages[tmp_path / "changelog.html"]
    assert 'id="latentcal.recalibrate"' in pages[tmp_path / "reference" / "recalibration.html"]


def test_a_page_that_asks_another_server_is_found():
    assert outside('<script src="https://cdn.example.org/a.js"></script><img src="a.png">') == [
        "https://cdn.example.org/a.js"
    ]
    assert outside('<a href="https://example.org">a link is no request</a>') == []
