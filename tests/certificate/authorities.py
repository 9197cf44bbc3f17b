"""Timestamp authorities for tests: a root, a signing certificate, and answers that openssl signs.

`Authority.answer` is what `openssl ts` makes of a request. `Authority.stamp` makes the token itself, to have it say
whatever a test wants: another time, another digest, no signing certificate attribute.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

TST_INFO = "1.2.840.113549.1.9.16.1.4"
SHA256 = bytes.fromhex("608648016503040201")
SHA1 = bytes.fromhex("2b0e03021a")
POLICY = bytes.fromhex("2a0304")
TIME_STAMPING = ExtendedKeyUsageOID.TIME_STAMPING
START = datetime(2024, 1, 1, tzinfo=UTC)
END = datetime(2046, 1, 1, tzinfo=UTC)
CONFIG = """[tsa]
default_tsa = it
[it]
serial = serial
default_policy = 1.2.3.4
digests = sha256
signer_digest = sha256
accuracy = secs:1
"""


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    length = (
        bytes([size])
        if size < 128
        else bytes([0x80 + (size.bit_length() + 7) // 8]) + size.to_bytes((size.bit_length() + 7) // 8)
    )
    return bytes([tag]) + length + content


def integer(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A folder with root.pem, tsa.pem and tsa.key."""

    folder: Path

    @property
    def roots(self) -> Path:
        return self.folder / "root.pem"

    def answer(self, request: bytes) -> bytes:
        """What `openssl ts` answers to a request."""
        (self.folder / "asked.tsq").write_bytes(request)
        (self.folder / "tsa.cnf").write_text(CONFIG)
        self._openssl(
            "ts", "-reply", "-config", "tsa.cnf", "-section", "it", "-queryfile", "asked.tsq",
            "-signer", "tsa.pem", "-inkey", "tsa.key", "-out", "answer.tsr",
        )  # fmt: skip
        return (self.folder / "answer.tsr").read_bytes()

    def stamp(
        self,
        content: bytes,
        *,
        at: datetime,
        imprint: tuple[bytes, str] = (SHA256, "sha256"),
        signed_by: str = "sha256",
        bound: bool = True,
        status: int = 0,
        nonce: int | None = None,
        accuracy: int | None = None,
        more: Sequence[Path] = (),
    ) -> bytes:
        """A response that says what is asked for."""
        name, algorithm = imprint
        info = der(
            0x30,
            integer(1),
            der(0x06, POLICY),
            der(0x30, der(0x30, der(0x06, name), der(0x05)), der(0x04, hashlib.new(algorithm, content).digest())),
            integer(7),
            der(0x18, at.astimezone(UTC).strftime("%Y%m%d%H%M%SZ").encode()),
            b"" if accuracy is None else der(0x30, integer(accuracy)),
            b"" if nonce is None else integer(nonce),
        )
        (self.folder / "info.der").write_bytes(info)
        self._openssl(
            "cms", "-sign", "-binary", "-nodetach", "-outform", "DER", "-econtent_type", TST_INFO, "-md", signed_by,
            "-signer", "tsa.pem", "-inkey", "tsa.key", "-in", "info.der", "-out", "token.der",
            *(["-cades"] if bound else []), *(word for file in more for word in ("-certfile", str(file))),
        )  # fmt: skip
        return der(0x30, der(0x30, integer(status)), (self.folder / "token.der").read_bytes())

    def twin(self) -> tuple[bytes, bytes]:
        """The signing certificate, and another (twin.pem) with its name, number, key and length, both as DER."""
        old = x509.load_pem_x509_certificate((self.folder / "tsa.pem").read_bytes())
        root_key = load_pem_private_key((self.folder / "root.key").read_bytes(), None)
        assert isinstance(root_key, ec.EllipticCurvePrivateKey)
        built = x509.CertificateBuilder(
            old.issuer, old.subject, old.public_key(), old.serial_number, START + timedelta(hours=1), END, []
        )
        for each in old.extensions:
            built = built.add_extension(each.value, critical=each.critical)
        length = len(old.public_bytes(Encoding.DER))
        while len((new := built.sign(root_key, hashes.SHA256())).public_bytes(Encoding.DER)) != length:
            pass  # a signature has a byte less now and then
        (self.folder / "twin.pem").write_bytes(new.public_bytes(Encoding.PEM))
        return old.public_bytes(Encoding.DER), new.public_bytes(Encoding.DER)

    def sign_weakly(self) -> None:
        """The signing certificate again, signed by SHA-1."""
        (self.folder / "weak.cnf").write_text("extendedKeyUsage = critical,timeStamping\n")
        self._openssl("req", "-new", "-key", "tsa.key", "-subj", "/CN=An authority", "-out", "tsa.csr")
        self._openssl(
            "x509", "-req", "-sha1", "-in", "tsa.csr", "-CA", "root.pem", "-CAkey", "root.key", "-set_serial", "5",
            "-days", "3650", "-extfile", "weak.cnf", "-out", "tsa.pem",
        )  # fmt: skip

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, text=True, check=False)  # noqa: S607
        assert done.returncode == 0, done.stderr


def authority(
    folder: Path,
    *,
    purposes: Sequence[ObjectIdentifier] = (TIME_STAMPING,),
    critical: bool = True,
    start: datetime = START,
    end: datetime = END,
    weak: bool = False,
) -> Authority:
    """A new one; its signing certificate as described, `weak` signed by SHA-1."""
    folder.mkdir(parents=True)
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name = _name("A root")
    root = (
        _certificate(root_name, root_name, root_key, START - timedelta(days=1), END + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    signer = _certificate(_name("An authority"), root_name, key, start, end).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    # Without it, of two roots of one name OpenSSL tries the first and no other.
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    signer = signer.add_extension(issued_by, critical=False)
    if purposes:
        signer = signer.add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=critical)
    pem = {"root.pem": root, "tsa.pem": signer.sign(root_key, hashes.SHA256())}
    for name, each in pem.items():
        (folder / name).write_bytes(each.public_bytes(Encoding.PEM))
    for name, private in (("root.key", root_key), ("tsa.key", key)):
        (folder / name).write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made = Authority(folder=folder)
    if weak:
        made.sign_weakly()
    return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return built.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
