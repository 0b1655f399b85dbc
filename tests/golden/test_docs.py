"""What the documents show is what the code says."""

import re
import textwrap
from pathlib import Path

import pytest

import sexton.holder
from sexton.core.life import diagram

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]
)


def block(page: str, marker: str) -> str:
    """The fenced block behind a marker comment."""
    text = (ROOT / page).read_text()
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"{page} has no block {marker}"
    return found.group(1)


def test_the_picture_of_a_versions_life_is_drawn_from_the_table() -> None:
    """docs/protocol.md shows what `life.diagram` says."""
    assert diagram() + "\n" == block("docs/protocol.md", "life")


def test_the_readmes_holder_is_the_one_that_is_tested() -> None:
    """README shows the example of the package's docstring, which an integration test runs."""
    doc = sexton.holder.__doc__
    assert doc is not None
    example = doc.split("::\n\n", 1)[1].split("\n\nErrors are in", 1)[0]
    assert _lines(textwrap.dedent(example)) == _lines(block("README.md", "holder-example"))


def _lines(code: str) -> list[str]:
    """The lines that say something, with comments where they are: formatters differ on the rest."""
    return [" ".join(line.split()) for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file or folder that is there."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert [] == missing
