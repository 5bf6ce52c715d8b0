"""Proofs that both ends of a connection know the same token, which itself is never sent.

    proof = HMAC-SHA256(token, [role, what was said ...])

What was said holds a fresh nonce of either side, so that a proof is worth nothing in another conversation, and the role
of who proves, so that nobody can be sent his own proof. Who comes proves first: others learn nothing to try tokens on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

VISITOR, HOST = "visitor", "host"
"""Roles: who connects, and who listens."""
LENGTH = 64
"""Characters of a nonce, and of a proof."""


def nonce() -> str:
    """Return a new one, in hexadecimal."""
    return secrets.token_hex(LENGTH // 2)


def proof(token: str, role: str, *said: str | int) -> str:
    """Return the proof of `role`, in hexadecimal; both sides must have said the same."""
    message = json.dumps([role, *said]).encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def holds(given: str, token: str, role: str, *said: str | int) -> bool:
    """Return whether `given` is that proof; how long it takes says nothing about it."""
    return hmac.compare_digest(given.encode(errors="replace"), proof(token, role, *said).encode())
