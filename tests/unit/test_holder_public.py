"""What an agent needs to name can be imported from `sexton.holder`."""

import inspect
import re

import sexton.holder as public
from sexton.holder import Bumps, Context, Derived, Holder
from sexton.schemas import errors, pointer, span


def documented(of: type) -> set[str]:
    """Classes that the docstrings of a public class name: in `Raises`, and between backticks."""
    found: set[str] = set()
    for name, member in inspect.getmembers(of):
        text = inspect.getdoc(member) if not name.startswith("_") else None
        if text is not None:
            found |= set(re.findall(r"^\s+([A-Z][A-Za-z]+): ", text, re.MULTILINE))
            found |= set(re.findall(r"`([A-Z][A-Za-z]+)`", text))
    return found


def test_whatever_the_docstrings_name_is_there() -> None:
    """To catch it, or to make one."""
    named = {name for of in (Holder, Context, Derived, Bumps) for name in documented(of)}
    ours = {name for name in named if any(hasattr(module, name) for module in (errors, pointer, span))}
    assert {"StaleSpanError", "PinRefused", "TooManyPins"} <= ours
    assert set() == ours - set(public.__all__)
    assert "SourceRef" in named & set(public.__all__)


def test_all_is_in_order_and_there() -> None:
    """And holds nothing twice."""
    assert sorted(set(public.__all__)) == sorted(public.__all__)
    assert [] == [name for name in public.__all__ if not hasattr(public, name)]
