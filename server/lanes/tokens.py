"""Signed campaign tokens: what one must say, what verifies it, and how one is made.

A token is a JWT (RFC 7519) under the rules of RFC 8725, made by whoever runs the campaign, for one visit:

    header   alg   that of the key, and no other: the key decides, never the token
             kid   which key; may be absent where there is one key, or a `token_secret`
    claims   aud   this service (`token_audience`)
             iat   when it was made, and exp, at most MAX_LIFE_S later
             jti   its own id: a token opens one connection (``passes.py``)
             nbf   not before (may be absent)
             campaign   a name that operators address its clients by (may be absent)

Keys are one shared secret (HS256), or a JWK Set (RFC 7517) of several: shared ones, or the public halves of ES256 and
EdDSA pairs, so that a server can verify tokens and make none. To change keys, add the new one, make tokens with it, and
remove the old one when its last token has expired, which is MAX_LIFE_S later.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Annotated, Any, Final

import jwt
import msgspec
from msgspec import Meta, Struct

from framelane.models.errors import FramelaneError
from framelane.server.errors import Refused
from framelane.server.protocol import Refusal

ALGORITHMS: Final = ("HS256", "ES256", "EdDSA")
MAX_LIFE_S: Final = 300
"""A token that was stolen is worth something for no longer."""
MIN_SECRET_BYTES: Final = 32
"""RFC 7518, section 3.2: as long as the hash."""
SKEW_S: Final = 10
"""By so much another machine's clock may be ahead. There is no such mercy for `exp`."""

_PUBLIC = {"kty", "crv", "x", "y", "kid", "alg", "use"}


class BadKeys(FramelaneError):
    """Keys that cannot be used; the message says which and why, and never what is in them."""

    code = "bad_keys"


class Key(Struct, frozen=True):
    """One key: its id ("" if it has none), its one algorithm, and what PyJWT verifies or signs with."""

    kid: str
    algorithm: str
    material: Any

    def __repr__(self) -> str:
        return f"Key({self.kid!r}, {self.algorithm})"


class Pass(Struct, frozen=True):
    """What a token says that was found good. Times are Unix time."""

    id: str
    expires_at: float
    campaign: str = ""


class _Claims(Struct, frozen=True):
    aud: str | list[str]
    exp: float
    iat: float
    jti: Annotated[str, Meta(min_length=1, max_length=128)]
    nbf: float = 0.0
    campaign: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")] = ""


class _Header(Struct, frozen=True):
    alg: str
    kid: Annotated[str, Meta(max_length=200)] = ""


_claims = msgspec.json.Decoder(_Claims).decode
_header = msgspec.json.Decoder(_Header).decode


class Tokens:
    """Verifies tokens.

    Args:
        keys: those in use.
        audience: what `aud` must be, or hold.
    """

    def __init__(self, keys: Iterable[Key], audience: str) -> None:
        self._keys = {key.kid: key for key in keys}
        self._audience = audience
        self._signatures = jwt.PyJWS(algorithms=list(ALGORITHMS))

    def check(self, token: str, now: float) -> Pass:
        """What the token says.

        Raises:
            Refused: it is not good at `now` (Unix time); the message says which rule it breaks.
        """
        claims = self._verified(token)
        if self._audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
            raise _unauthorized("the token is for another audience")
        if not 0 < claims.exp - claims.iat <= MAX_LIFE_S:
            raise _unauthorized(f"the token lasts longer than {MAX_LIFE_S} s from iat to exp")
        if claims.exp <= now:
            raise _unauthorized("the token has expired")
        if max(claims.iat, claims.nbf) > now + SKEW_S:
            raise _unauthorized("the token is not valid yet")
        return Pass(claims.jti, claims.exp, claims.campaign)

    def _verified(self, token: str) -> _Claims:
        try:
            header = _header(json.dumps(jwt.get_unverified_header(token)))
            key = self._keys.get(header.kid) or self._only_key(header.kid)
            if key is None:
                raise _unauthorized("the token was made with a key that is not known here")
            if header.alg != key.algorithm:
                raise _unauthorized(f"the token's algorithm is not {key.algorithm}, that of its key")
            payload = self._signatures.decode(token, key.material, algorithms=[key.algorithm])
        except (jwt.InvalidTokenError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            raise _unauthorized("the token is damaged, or its signature is wrong") from None
        try:
            return _claims(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _unauthorized(f"the token needs aud, exp, iat and jti: {str(error)[:80]}") from None

    def _only_key(self, kid: str) -> Key | None:
        return next(iter(self._keys.values())) if not kid and len(self._keys) == 1 else None


def mint(key: Key, audience: str, now: float, *, seconds: float = MAX_LIFE_S, campaign: str = "") -> str:
    """Make a token.

    Args:
        key: a shared or private one.
        audience: the service that it is for.
        now: Unix time.
        seconds: how long it lasts, at most MAX_LIFE_S.
        campaign: for operators; "" is none.

    Raises:
        BadKeys: the key cannot sign.
        ValueError: so long it may not last.
    """
    if not 0 < seconds <= MAX_LIFE_S:
        raise ValueError(f"a token lasts up to {MAX_LIFE_S} s, not {seconds:g}")
    claims = {"aud": audience, "iat": int(now), "exp": int(now + seconds), "jti": secrets.token_urlsafe(16)}
    headers = {"kid": key.kid} if key.kid else None
    try:
        return jwt.encode(claims | ({"campaign": campaign} if campaign else {}), key.material, key.algorithm, headers)
    except (AttributeError, TypeError, jwt.InvalidKeyError):  # a public key has nothing to sign with
        raise BadKeys(f"key {key.kid!r} is a public one: it verifies tokens and makes none") from None


def secret_key(secret: str) -> Key:
    """The key of a `token_secret`.

    Raises:
        BadKeys: it is too short.
    """
    material = secret.encode()
    if len(material) < MIN_SECRET_BYTES:
        raise BadKeys(f"token_secret has {len(material)} bytes; it takes {MIN_SECRET_BYTES}: openssl rand -base64 32")
    return Key("", "HS256", material)


def key_set(text: str | bytes) -> list[Key]:
    """The keys of a JWK Set; each has a `kid` and an `alg` of ALGORITHMS.

    Raises:
        BadKeys: the text is none, or a key of it cannot be used.
    """
    try:
        entries = msgspec.json.decode(text, type=dict[str, Any])["keys"]
        named = [(str(entry["kid"]), str(entry["alg"]), entry) for entry in entries]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        raise BadKeys('a key file is a JWK Set: {"keys": [{"kid": …, "alg": …, "kty": …}, …]}') from None
    if not named or len({kid for kid, _, _ in named} - {""}) != len(named):
        raise BadKeys("a key file holds at least one key, and each has a kid of its own")
    return [_key(kid, algorithm, entry) for kid, algorithm, entry in named]


def _key(kid: str, algorithm: str, entry: dict[str, Any]) -> Key:
    if algorithm not in ALGORITHMS:
        raise BadKeys(f"key {kid!r}: its alg is {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    try:
        material = jwt.PyJWK(entry, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        if not _can_verify(algorithm):
            cure = "pip install 'framelane[public-keys]'"
            raise BadKeys(f"key {kid!r} is {algorithm}, which needs the package cryptography: {cure}") from None
        raise BadKeys(f"key {kid!r} is no {algorithm} key ({type(error).__name__})") from None
    if algorithm == "HS256" and len(material) < MIN_SECRET_BYTES:
        raise BadKeys(f"key {kid!r} has {len(material)} bytes; HS256 takes {MIN_SECRET_BYTES}")
    return Key(kid, algorithm, material)


def _can_verify(algorithm: str) -> bool:
    return algorithm in jwt.PyJWS().get_algorithms()


def new_key_set(kid: str, algorithm: str) -> str:
    """A JWK Set of one new key, private half included.

    Raises:
        BadKeys: the algorithm needs a package that is not installed.
    """
    if not _can_verify(algorithm):
        raise BadKeys(f"{algorithm} needs the package cryptography: pip install 'framelane[public-keys]'")
    worker = jwt.PyJWS().get_algorithm_by_name(algorithm)
    entry: dict[str, Any] = worker.to_jwk(_new_material(algorithm), as_dict=True)
    entry = {key: value for key, value in entry.items() if key not in ("key_ops", "kid")}
    return json.dumps({"keys": [{"kid": kid, "alg": algorithm, **entry}]}, indent=1)


def _new_material(algorithm: str) -> Any:
    if algorithm == "HS256":
        return secrets.token_bytes(MIN_SECRET_BYTES)
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


def public_key_set(text: str | bytes) -> str:
    """A JWK Set without private halves: what a server needs that only verifies.

    Raises:
        BadKeys: as ``key_set``, or a key is a shared one, which has no public half.
    """
    shared = [key.kid for key in key_set(text) if key.algorithm == "HS256"]
    if shared:
        raise BadKeys(f"a shared key has no public half: {', '.join(shared)}")
    entries = msgspec.json.decode(text)["keys"]
    kept = [{name: value for name, value in entry.items() if name in _PUBLIC} for entry in entries]
    return json.dumps({"keys": kept}, indent=1)


def _unauthorized(message: str) -> Refused:
    return Refused(message, code=Refusal.UNAUTHORIZED)
