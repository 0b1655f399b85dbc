"""What the doctor's own messages, keys and bytes are named. No command ever names it."""

from typing import Final

CONTEXT: Final = "sexton-doctor"
SPAN: Final = "l0:doctor"
