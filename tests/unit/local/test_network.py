from __future__ import annotations

from pathlib import Path

from airflow_provider_pgetl.local.network import jvm_options


def test_without_a_proxy_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert jvm_options(tmp_path, own_certificates=False, environment={}) == []


def test_proxy_variables_become_java_options(tmp_path: Path) -> None:
    environment = {"HTTPS_PROXY": "http://proxy.intranet:3128", "no_proxy": "localhost,.intranet"}
    assert jvm_options(tmp_path, own_certificates=False, environment=environment) == [
        "-Dhttps.proxyHost=proxy.intranet",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.intranet",
    ]


def test_certificates_of_the_machine_are_given_to_a_java_with_only_its_own(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    _self_signed(bundle)
    options = jvm_options(tmp_path, own_certificates=True, environment={"SSL_CERT_FILE": str(bundle)})
    assert options[0] == f"-Djavax.net.ssl.trustStore={tmp_path / 'trusted.p12'}"
    assert (tmp_path / "trusted.p12").stat().st_size > 0


def test_machine_without_certificates_adds_none(tmp_path: Path) -> None:
    environment = {"SSL_CERT_FILE": str(tmp_path / "missing.pem")}
    assert jvm_options(tmp_path, own_certificates=True, environment=environment) == []


def _self_signed(certificate: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a company's own")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
