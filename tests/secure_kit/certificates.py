"""Certificates for the tests, made by the `openssl` that is there."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    folder: Path
    own: Certificate

    def sign(self, name: str, *, host: str | None = None) -> Certificate:
        """A certificate for a client, or for the server at `host`."""
        key, request, cert = (self.folder / f"{name}{end}" for end in (".key", ".csr", ".pem"))
        _openssl(
            "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-out", request,
        )  # fmt: skip
        more = self.folder / f"{name}.ext"
        kind = "IP" if host and host[0].isdigit() else "DNS"
        more.write_text(f"subjectAltName={kind}:{host}\n" if host else "extendedKeyUsage=clientAuth\n")
        _openssl(
            "x509", "-req", "-days", "2", "-in", request, "-out", cert, "-extfile", more, "-CAcreateserial",
            "-CA", self.own.cert, "-CAkey", self.own.key,
        )  # fmt: skip
        return Certificate(cert, key)


def authority(folder: Path, name: str = "authority") -> Authority:
    """A new one."""
    folder.mkdir(exist_ok=True)
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", key, "-out", cert,
    )  # fmt: skip
    return Authority(folder, Certificate(cert, key))


def _openssl(*args: "str | Path") -> None:
    try:
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no openssl on PATH")
