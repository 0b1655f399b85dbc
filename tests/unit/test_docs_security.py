"""docs/security.md names what there is."""

import re
from pathlib import Path
from typing import Final

from sexton.worker.settings import PREFIX, Settings

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_settings_exist() -> None:
    """Every variable is one of the settings, of the roles' keys, or the folder of secrets."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {"SEXTON_SECRETS_DIR"}
    deployed = "".join(path.read_text() for path in (ROOT / "deploy/nats").glob("*.conf"))
    known |= set(re.findall(r"\$(SEXTON_\w+)", deployed))
    named = {name for name in re.findall(r"SEXTON_[A-Z_]+", TEXT) if name != "SEXTON_DEAD"}
    assert named <= known, named - known


def test_files_exist() -> None:
    """Every file and test that it refers to."""
    named = re.findall(r"`((?:deploy|tests)/[\w./-]+\.\w+)`", TEXT)
    named += [f"docs/{name}" for name in re.findall(r"\]\((decisions/[^)]+)\)", TEXT)]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert [] == missing
