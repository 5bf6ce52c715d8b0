"""Endpoints: the address at which an inference service listens and workers connect, with token and encryption."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import grpc

from ddrl.errors import UserError, about
from ddrl.system.files import read_file
from ddrl.system.private_folders import LONGEST_SOCKET, check_own_socket

UNIX = "unix:"
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):(\d{1,5})", re.ASCII)


class Tls(NamedTuple):
    """PEM files for the encryption of a stream."""

    certificate: Path | None = None
    """The certificate of this side, and those that sign it."""
    key: Path | None = None
    authority: Path | None = None
    """The certificate that must have signed the other side's."""

    def check(self, option: str) -> None:
        """Raise UserError if files are missing or hold something else. `option`: what the message names."""
        if (self.certificate is None) != (self.key is None):
            raise UserError(f"{option}: --tls-cert and --tls-key go together")
        for file, name in zip(self, ("--tls-cert", "--tls-key", "--tls-ca"), strict=True):
            if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
                raise UserError(f"{name} {file}: no such file, or it cannot be read")
        if not any(self):
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.certificate and self.key:
            with _refusing(f"--tls-cert {self.certificate}, --tls-key {self.key}"):
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        if self.authority:
            with _refusing(f"--tls-ca {self.authority}"):
                context.load_verify_locations(self.authority)

    def of_server(self) -> grpc.ServerCredentials:
        """Return the credentials of a server; with an authority, clients must have a certificate, too."""
        assert self.certificate and self.key
        pair = (read_file(self.key), read_file(self.certificate))
        authority = read_file(self.authority) if self.authority else None
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)

    def of_channel(self) -> grpc.ChannelCredentials:
        """Return the credentials of a client."""
        assert self.authority
        own = (read_file(self.key), read_file(self.certificate)) if self.key and self.certificate else (None, None)
        return grpc.ssl_channel_credentials(read_file(self.authority), *own)


@contextmanager
def _refusing(files: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # errors of ssl are OSErrors
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(f"{files}: {' '.join(str(reason).split()).lower()}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # without this ssl would ask at the terminal


PLAIN = Tls()
"""No encryption."""


@dataclass(frozen=True)
class Endpoint:
    """The address at which a service listens, and the rest that a worker needs to connect."""

    address: str
    """unix:/path/of/a/socket, or HOST:PORT (port 0: any free one)."""
    token: str | None = None
    tls: Tls = PLAIN
    insecure: bool = False
    """True: an unencrypted stream may cross the network, where others could read and change it."""

    def check(self) -> None:
        """Raise UserError for a service that anybody could connect to, or whose files are missing."""
        option = f"--listen {self.address}"
        check_address(self.address, option)
        self.tls.check(option)
        if self.tls.authority and not self.tls.certificate:
            raise UserError(f"{option}: --tls-ca (who signed workers' certificates) goes with --tls-cert and --tls-key")
        if is_local(self.address):
            return
        if not self.token:
            raise UserError(
                f"{option}: other machines could send anything; give a token (--token-file) or listen "
                "on 127.0.0.1:PORT or unix:/PATH"
            )
        if not (self.tls.certificate or self.insecure):
            raise UserError(
                f"{option}: the stream would cross the network in the clear; give --tls-cert and --tls-key, or say "
                "--insecure where all who are on that network may be trusted"
            )

    def check_way(self) -> None:
        """Raise UserError for an endpoint that a worker should not connect to."""
        option = f"--connect {self.address}"
        check_address(self.address, option)
        self.tls.check(option)
        if self.tls.certificate and not self.tls.authority:
            raise UserError(f"{option}: --tls-cert and --tls-key of a worker go with --tls-ca")
        if not (is_local(self.address) or self.tls.authority or self.insecure):
            raise UserError(
                f"{option}: the stream would cross the network in the clear; give --tls-ca, or say --insecure where "
                "all who are on that network may be trusted"
            )


def check_address(address: str, option: str) -> None:
    """Raise UserError unless `address` is HOST:PORT, or that of a Unix socket in a private folder."""
    if address.startswith(UNIX):
        path = address.removeprefix(UNIX)
        if not path or len(os.fsencode(path)) > LONGEST_SOCKET:
            raise UserError(f"{option}: a socket's path has 1 to {LONGEST_SOCKET} bytes")
        with about(option):
            check_own_socket(Path(path))
        return
    matched = _HOST_AND_PORT.fullmatch(address)
    if not matched or int(matched[2]) > 65535:
        raise UserError(f"{option}: allowed are HOST:PORT and unix:/PATH")


def is_local(address: str) -> bool:
    """Return whether only this machine can reach `address`."""
    if address.startswith(UNIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def target(address: str) -> str:
    """Return the address as gRPC reads it: a URI, in which `#`, `%` and `?` of a path are quoted."""
    return UNIX + quote(os.fsencode(address.removeprefix(UNIX))) if address.startswith(UNIX) else address
