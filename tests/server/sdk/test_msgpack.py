"""msgpack.js against msgspec, which the server uses."""

import base64
import math

import msgspec
import pytest

VALUES = [
    None,
    True,
    False,
    *(
        sign * n
        for n in (0, 1, 31, 32, 33, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32, 2**53 - 1)
        for sign in (1, -1)
    ),
    *(0.5, -1.25, 1e300),
    *("", "ä€😀", "x" * 31, "x" * 32, "x" * 256, "x" * 70_000),
    *([], [1, [2, [3]]], list(range(15)), list(range(16)), list(range(70_000))),
    *({}, {"a": {"b": [None]}}, {f"k{n}": n for n in range(16)}, {"__proto__": 1, "constructor": 2}),
]
LENGTHS = [0, 1, 255, 256, 65_535, 65_536]

DECODE = """async (text) => {
  const { decode, encode } = await import("/sdk/msgpack.js");
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  try {
    const value = decode(bytes);
    const own = encode(value);
    let again = "";
    for (const byte of own) again += String.fromCharCode(byte);
    return { json: JSON.stringify(value), again: btoa(again) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
}"""


def told(page, message: bytes) -> dict:
    return page.evaluate(DECODE, base64.b64encode(message).decode())


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_value_comes_through_and_back(javascript, value):
    answer = told(javascript, msgspec.msgpack.encode(value))
    assert msgspec.json.decode(answer["json"]) == value
    assert msgspec.msgpack.decode(base64.b64decode(answer["again"])) == value


@pytest.mark.parametrize("length", LENGTHS)
def test_bytes_come_through_and_back(javascript, length):
    data = bytes(n % 251 for n in range(length))
    answer = told(javascript, msgspec.msgpack.encode(["frame", 1, data]))
    assert msgspec.msgpack.decode(base64.b64decode(answer["again"])) == ["frame", 1, data]


def test_single_precision_floats_are_read(javascript):
    assert told(javascript, b"\xca\x3f\xa0\x00\x00")["json"] == "1.25"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "cut short"),
        (b"\xc4\x05abc", "cut short"),
        (b"\xdd\xff\xff\xff\xff\x01", "cut short"),
        (b"\xdb\xff\xff\xff\xffx", "cut short"),
        (b"\x01\x02", "bytes after the value"),
        (b"\x91" * 40 + b"\x01", "too deep"),
        (b"\xd6\xff\x00\x00\x00\x00", "not part of the protocol"),  # a timestamp
        (b"\xc1", "not part of the protocol"),
        (b"\x81\x01\x02", "a key is text"),
        (b"\xcf" + b"\xff" * 8, "beyond 2^53"),
        (b"\xa2\xff\xfe", "TypeError"),  # text that is no UTF-8
    ],
)
def test_bad_message_throws(javascript, message, error):
    assert error in told(javascript, message)["error"]


def test_numbers_beyond_integers_are_doubles(javascript):
    page = javascript
    encoded = page.evaluate("import('/sdk/msgpack.js').then(({ encode }) => [...encode([NaN, Infinity, 2 ** 60])])")
    first, second, third = msgspec.msgpack.decode(bytes(encoded))
    assert (math.isnan(first), second, third) == (True, math.inf, 2.0**60)
