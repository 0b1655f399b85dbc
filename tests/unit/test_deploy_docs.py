"""What operators read: that it names only what there is."""

import re
from pathlib import Path
from typing import Final

import pytest

from sexton.schemas import subjects
from sexton.worker.settings import PREFIX, Settings
from tests.deploy_kit import DEPLOY, K8S, ROOT, anchors

PAGES: Final = (ROOT / "docs/operations.md", DEPLOY / "README.md")
STREAMS: Final = {value for name, value in vars(subjects).items() if name.startswith("STREAM_")}
OTHERS: Final = {"SEXTON_SECRETS_DIR"}
_NAMES: Final = re.compile(r"\bSEXTON_[A-Z_]+\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file of this checkout, and to a heading of it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_is_a_setting_or_a_stream(page: Path) -> None:
    """Or a variable of the servers' own. Whoever sets what is no setting changes nothing."""
    servers = {name for path in (DEPLOY / "nats").iterdir() for name in _NAMES.findall(path.read_text())}
    known = {PREFIX + name.upper() for name in Settings.model_fields} | STREAMS | OTHERS | servers
    assert set() == set(_NAMES.findall(page.read_text(encoding="utf-8"))) - known


def test_every_file_of_the_folder_is_on_its_map() -> None:
    """By the folder or the file at its top."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in DEPLOY.iterdir():
        if path.name not in {"README.md", "secrets"}:
            assert f"`{path.name}{'/' if path.is_dir() else ''}`" in text
    for folder in K8S.iterdir():
        assert f"`{folder.name}" in text
