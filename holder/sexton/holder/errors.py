"""Errors that only a holder has. All others are in `sexton.schemas.errors`."""

from sexton.schemas.errors import CallerError, TransientError


class HolderClosed(CallerError):
    """The holder, or this context of it, was closed. Open it again."""

    code = "holder_closed"


class BumpsMissed(TransientError):
    """A reader of bumps can no longer be given every record; none was skipped before this was raised.

    `next_revision` is the first one that it did not get. `reason` is `behind` (the log does not keep it any
    more; `kept_from` is the oldest revision that it has, if known) or `lineage` (the log was recreated, or
    restored). Read the state (`render`, `tree`) and start a new iteration.
    """

    code = "bumps_missed"
