"""Proofs that both ends of a connection know the same token, which itself is never sent.

    proof = HMAC-SHA256(token, [role, transcript ...])

The transcript is what both sides have said. It holds a fresh nonce of each, so that a proof is worth nothing in another
conversation. The role keeps a proof from being sent back to its sender. The client proves first, so that a client
without the token gets nothing to try tokens on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

CLIENT, SERVER = "client", "server"
"""Roles: the side that connects, and the side that listens."""
LENGTH = 64
"""Characters of a nonce, and of a proof."""


def nonce() -> str:
    """Return a new nonce, in hexadecimal."""
    return secrets.token_hex(LENGTH // 2)


def proof(token: str, role: str, *transcript: str | int) -> str:
    """Return the proof of `role`, in hexadecimal."""
    message = json.dumps([role, *transcript]).encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def holds(given: str, token: str, role: str, *transcript: str | int) -> bool:
    """Return whether `given` is that proof, in a time that does not depend on the answer."""
    return hmac.compare_digest(given.encode(errors="replace"), proof(token, role, *transcript).encode())
