"""Signed tokens: what is good, and every way of being none."""

import base64
import json
from typing import Any

import jwt
import pytest

from framelane.server.errors import Refused
from framelane.server.lanes.tokens import (
    ALGORITHMS,
    MAX_LIFE_S,
    BadKeys,
    Key,
    Tokens,
    key_set,
    mint,
    new_key_set,
    public_key_set,
    secret_key,
)

NOW = 1_800_000_000.0
SECRET = secret_key("x" * 32)
HERE = Tokens([SECRET], "here")


def signed(key: Any = SECRET.material, algorithm: str = "HS256", headers: Any = None, **claims: Any) -> str:
    good = {"aud": "here", "iat": NOW, "exp": NOW + 60, "jti": "a"}
    kept = {name: value for name, value in {**good, **claims}.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers)


def refusal(token: str, tokens: Tokens = HERE, now: float = NOW) -> str:
    with pytest.raises(Refused) as refused:
        tokens.check(token, now)
    assert (refused.value.code, refused.value.retry_after_ms) == ("unauthorized", None)
    return refused.value.message


def unsigned(header: dict[str, Any]) -> str:
    """A token that claims to need no signature."""
    parts = [header, {"aud": "here", "iat": NOW, "exp": NOW + 60, "jti": "a"}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_minted_token_is_good_until_it_expires(algorithm: str) -> None:
    (key,) = key_set(new_key_set("k", algorithm))
    token = mint(key, "here", NOW, seconds=60, campaign="spring-1")
    tokens = Tokens([key], "here")
    shown = tokens.check(token, NOW)
    assert (shown.campaign, shown.expires_at) == ("spring-1", NOW + 60)
    assert tokens.check(token, NOW + 59.9) == shown
    assert "expired" in refusal(token, tokens, NOW + 60)
    assert tokens.check(mint(key, "here", NOW), NOW).id != shown.id


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW - 1, "iat": NOW - 60}, "expired"),
        ({"aud": "elsewhere"}, "audience"),
        ({"aud": ["elsewhere", "there"]}, "audience"),
        ({"nbf": NOW + 30}, "not valid yet"),
        ({"iat": NOW + 30, "exp": NOW + 60}, "not valid yet"),
        ({"exp": NOW + MAX_LIFE_S + 1}, "lasts longer"),
        ({"iat": NOW - 400, "exp": NOW + 60}, "lasts longer"),
        ({"exp": NOW - 1}, "lasts longer"),
        ({"jti": None}, "jti"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"aud": None}, "aud"),
        ({"jti": "a" * 200}, "jti"),
        ({"campaign": "a\nb"}, "campaign"),
    ],
)
def test_token_that_breaks_a_rule_is_refused_by_its_name(claims: dict[str, Any], why: str) -> None:
    if "campaign" in claims:
        assert "needs" in refusal(signed(**claims))
    else:
        assert why in refusal(signed(**claims))


@pytest.mark.parametrize("claims", [{"aud": ["there", "here"]}, {"nbf": NOW + 5}, {"campaign": ""}, {"more": [1]}])
def test_token_that_says_more_or_a_little_early_is_good(claims: dict[str, Any]) -> None:
    assert HERE.check(signed(**claims), NOW).id == "a"


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "HS512", "RS256", "", "HS256 ", 5, None])
def test_algorithm_is_the_keys_own(alg: Any) -> None:
    refusal(unsigned({"alg": alg, "typ": "JWT"}))
    if alg == "HS512":
        assert "algorithm is not HS256" in refusal(signed(SECRET.material * 2, "HS512"))


def test_public_key_is_no_shared_secret() -> None:
    """The classic confusion: HS256 with the text of a public key as the secret."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = key_set(public_key_set(new_key_set("k", "ES256")))
    tokens = Tokens(public, "here")
    pem = public[0].material.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = {"alg": "HS256", "kid": "k"}
    body = unsigned(head).rstrip(".")
    forged = jwt.get_algorithm_by_name("HS256").sign(body.encode(), pem)
    token = f"{body}.{base64.urlsafe_b64encode(forged).decode().rstrip('=')}"
    assert "algorithm is not ES256" in refusal(token, tokens)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é.é.é", "x" * 4096, "e30.e30.", "W10.W10.", "bnVsbA.e30."])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert "damaged" in refusal(token)


def test_signature_of_another_key_is_refused() -> None:
    assert "signature" in refusal(signed(b"y" * 32))
    assert "signature" in refusal(signed()[:-4] + "AAAA")
    assert "not known" in refusal(signed(headers={"kid": "other"}))


def test_keys_change_one_after_the_other() -> None:
    old, new = key_set(new_key_set("old", "HS256"))[0], key_set(new_key_set("new", "EdDSA"))[0]
    both = Tokens([old, new], "here")
    for key in (old, new):
        assert both.check(mint(key, "here", NOW), NOW)
    assert "not known" in refusal(mint(old, "here", NOW), Tokens([new], "here"))
    assert "not known" in refusal(signed(old.material), both), "without a kid there is no telling"
    crossed = signed(old.material, headers={"kid": "new"})
    assert "algorithm is not EdDSA" in refusal(crossed, both)


def test_public_half_verifies_and_cannot_sign() -> None:
    private = new_key_set("k", "EdDSA")
    public = public_key_set(private)
    assert '"d"' in private
    assert '"d"' not in public
    (key,) = key_set(public)
    assert Tokens([key], "here").check(mint(key_set(private)[0], "here", NOW), NOW)
    with pytest.raises(BadKeys, match="makes none"):
        mint(key, "here", NOW)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JWK Set"),
        ('{"keys": []}', "at least one"),
        ('{"keys": [{"kty": "oct"}]}', "JWK Set"),
        ('{"keys": [{"kid": "a", "alg": "none", "kty": "oct", "k": "AAAA"}]}', "alg is 'none'"),
        ('{"keys": [{"kid": "a", "alg": "HS256", "kty": "oct", "k": "AAAA"}]}', "3 bytes"),
        ('{"keys": [{"kid": "a", "alg": "ES256", "kty": "oct", "k": "AAAA"}]}', "no ES256 key"),
        ('{"keys": [{"kid": "", "alg": "HS256", "kty": "oct", "k": "AAAA"}]}', "kid of its own"),
    ],
)
def test_bad_key_file_is_refused_without_showing_what_is_in_it(text: str, why: str) -> None:
    with pytest.raises(BadKeys, match=why) as error:
        key_set(text)
    assert "AAAA" not in str(error.value)


def test_keys_that_are_shared_have_no_public_half() -> None:
    with pytest.raises(BadKeys, match="no public half"):
        public_key_set(new_key_set("k", "HS256"))


def test_key_does_not_show_itself() -> None:
    assert "xxx" not in repr(SECRET)
    assert repr(Key("k", "HS256", b"")) == "Key('k', HS256)"


@pytest.mark.parametrize("seconds", [0, -1, 301])
def test_token_lasts_five_minutes_at_most(seconds: int) -> None:
    with pytest.raises(ValueError, match="300"):
        mint(SECRET, "here", NOW, seconds=seconds)
