"""Lets a Java reach the network the way the rest of the machine does.

A JVM reads neither the proxy variables nor the machine's certificates. Behind a company's proxy, or one that
opens TLS with a certificate of its own, pip works and the download of Spark's jars would not.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# Certificates are public: the password is there because the format wants one. It is Java's usual one.
STORE_PASSWORD = "changeit"  # noqa: S105


def jvm_options(folder: Path, *, own_certificates: bool, environment: Mapping[str, str] | None = None) -> list[str]:
    """Return options for proxies and certificates; `own_certificates` says that this Java brings only its own."""
    known = os.environ if environment is None else environment
    trusted = _trust_options(folder, known) if own_certificates else []
    return [*_proxy_options(known), *trusted]


def _proxy_options(environment: Mapping[str, str]) -> list[str]:
    options = []
    for scheme in ("http", "https"):
        text = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        proxy = urlsplit(text) if text else None
        if proxy is not None and proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    direct = environment.get("no_proxy") or environment.get("NO_PROXY")
    if options and direct:
        hosts = [f"*{host}" if host.startswith(".") else host for host in map(str.strip, direct.split(",")) if host]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def _trust_options(folder: Path, environment: Mapping[str, str]) -> list[str]:
    bundle = environment.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not bundle or not Path(bundle).is_file():
        return []
    store = folder / "trusted.p12"
    write_trust_store(Path(bundle), store)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
        f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}",
    ]


def write_trust_store(bundle: Path, store: Path) -> None:
    """Turn a PEM file of certificates into the format that Java reads; a broken one is left out."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    certificates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bundles hold certificates with small faults, and Java takes them
        for number, text in enumerate(_CERTIFICATE.findall(bundle.read_bytes())):
            with contextlib.suppress(ValueError):
                loaded = x509.load_pem_x509_certificate(text)
                certificates.append(pkcs12.PKCS12Certificate(loaded, f"certificate {number}".encode()))
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(certificates, encryption))
