"""What is in a credentials file of NATS, as `nsc` writes it: a user's JWT and the seed of its nkey."""

import re
from itertools import pairwise
from typing import Final, NamedTuple

from sexton.schemas.errors import InvalidInput

_SEED: Final = re.compile(rb"SU[A-Z2-7]{56}")


class Credentials(NamedTuple):
    """The two parts."""

    jwt: bytes
    seed: bytes


def read_credentials(data: bytes, field: str) -> Credentials:
    """The parts of a credentials file. Raises `InvalidInput` if there are not both; it repeats neither.

    nats-py reads on for ever in a file without a JWT.
    """
    jwt, seed = _after(data, b"BEGIN NATS USER JWT"), _after(data, b"BEGIN USER NKEY SEED")
    if not jwt or not seed:
        raise InvalidInput(f"{field}: no credentials file: it has a user's JWT and its seed", field=field)
    check_seed(seed, field)
    return Credentials(jwt, seed)


def check_seed(seed: bytes, field: str) -> None:
    """Checks that this looks like the seed of a user's nkey. Raises `InvalidInput`, without repeating it."""
    if _SEED.fullmatch(seed.strip()) is None:
        raise InvalidInput(f"{field}: not the seed of a user's nkey, SU…", field=field)


def _after(data: bytes, heading: bytes) -> bytes:
    for line, following in pairwise(data.splitlines()):
        if heading in line:
            return following.strip()
    return b""
