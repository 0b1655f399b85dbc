"""The compose file and what is laid over it, put together as Compose does, as far as these files need it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.deploy_kit import DEPLOY, load

PLAIN: Final = load(DEPLOY / "compose.yaml")
SECURE: Final = load(DEPLOY / "compose.secure.yaml")


def laid_over(below: Any, above: Any) -> Any:
    """Mappings are merged and lists joined; a command and a health check's test replace what was there."""
    if isinstance(below, dict) and isinstance(above, dict):
        merged = {
            key: value if key in {"command", "test"} else laid_over(below.get(key), value)
            for key, value in above.items()
        }
        return {**below, **merged}
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


TOGETHER: Final = laid_over(PLAIN, SECURE)


def mounts(service: dict[str, Any], secrets: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a service finds: each file or folder of `deploy/`, and where; its secrets among them."""
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if source.startswith("./"):
            yield source, target
    for secret in service.get("secrets", []):
        name, target = (secret, secret) if isinstance(secret, str) else (secret["source"], secret["target"])
        yield secrets[name]["file"], str(Path("/run/secrets") / target)
