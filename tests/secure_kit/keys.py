"""nkeys for the tests, and files with them."""

import base64
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Key:
    """A pair of keys."""

    seed: str
    public: str

    def seed_file(self, folder: Path) -> Path:
        """The seed in a file, as `nk` writes it."""
        path = folder / f"{self.public[:12]}.nk"
        path.write_text(self.seed + "\n")
        path.chmod(0o600)
        return path

    def sign(self, data: bytes) -> bytes:
        """A signature."""
        signature: bytes = nkeys.from_seed(bytearray(self.seed.encode())).sign(data)
        return signature


def new_key(prefix: int = nkeys.PREFIX_BYTE_USER) -> Key:
    """New keys: of a user, an account or an operator."""
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return Key(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def new_account_key() -> Key:
    """Keys of an account."""
    return new_key(nkeys.PREFIX_BYTE_ACCOUNT)


def new_operator_key() -> Key:
    """Keys of an operator."""
    return new_key(nkeys.PREFIX_BYTE_OPERATOR)


def jwt(issuer: Key, subject: str, name: str, nats: dict[str, Any]) -> str:
    """A claim of NATS's kind, signed: JSON that names who may do what."""
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    about = {"jti": name, "iat": int(time.time()), "iss": issuer.public, "name": name, "sub": subject}
    signed = f"{_part(header)}.{_part({**about, 'nats': nats})}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def creds_file(folder: Path, name: str, token: str, key: Key) -> Path:
    """A credentials file, as `nsc` writes it."""
    path = folder / f"{name}.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )
    path.chmod(0o600)
    return path


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
