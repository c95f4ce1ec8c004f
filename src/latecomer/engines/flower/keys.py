"""On the client: the key by which a node proves who it is."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from ...errors import SettingError


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key: ECDSA, as OpenSSH or OpenSSL write it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingError(f"The key {path} cannot be read: {error.strerror or error}.") from error
    load = load_ssh_private_key if b"OPENSSH" in text[:100] else load_pem_private_key
    try:
        key = load(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(f"{path} holds no private key that can be read without a password.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"The key in {path} must be ECDSA; ssh-keygen -t ecdsa -b 384 makes one.")
    return key


def new_key() -> bytes:
    """A key for a SuperLink that lets nodes register themselves."""
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
