"""What hypothesis makes commands of."""

from hypothesis import strategies as st

from tests.core_kit.build import leaf

PICK = st.integers(min_value=0, max_value=10_000)
"""Chooses among whatever there is when the step is taken."""
FEW = st.integers(min_value=1, max_value=6)
SELDOM = st.sampled_from([False] * 5 + [True])
"""Wrong often enough to be tried, right often enough for the history to get somewhere."""
NAMES = st.sampled_from([None, None, None, "a", "b", "c", "d"])
ODD_TEXTS = st.sampled_from(["same", "same", "\r\n", "\ufeffé", "👩‍👩‍👧 and more"])
TEXTS = st.text(min_size=2, max_size=9) | ODD_TEXTS
TEXTS_OR_NONE = TEXTS | TEXTS | TEXTS | st.just("")
GROUPS = st.sampled_from([None, None, None, "g", "h"])
SUMMARIES = st.sampled_from(["s", "s", "s", "ß", "~", "", " \n", "larger than most of its sources"])
LEAVES = st.builds(leaf, st.none(), TEXTS, group=GROUPS, waits=SELDOM)
ANY_LEAVES = LEAVES | st.builds(leaf, NAMES, TEXTS_OR_NONE)
