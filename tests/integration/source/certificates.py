"""Certificates for TLS tests, made on the spot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority that keeps its files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"{name} root")
        root = self._signed(self._subject, self._key, x509.BasicConstraints(ca=True, path_length=None), [])
        self.certificate = self._write(f"{name}-root.crt", root.public_bytes(serialization.Encoding.PEM), 0o644)

    def issue(self, name: str, *, hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """A certificate for `name` (as common name) and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._signed(_name(name), key, x509.BasicConstraints(ca=False, path_length=None), hosts)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (
            self._write(f"{self._name}-{name}.crt", signed.public_bytes(serialization.Encoding.PEM), 0o644),
            self._write(f"{self._name}-{name}.key", secret, 0o600),
        )

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        constraints: x509.BasicConstraints,
        hosts: Sequence[str],
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(constraints, critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, content: bytes, mode: int) -> Path:
        path = self._folder / name
        path.touch(mode)
        path.write_bytes(content)
        path.chmod(mode)
        return path


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
