"""Asking a replica something over HTTP, without a library: a request of a few bytes, and its whole answer."""

from __future__ import annotations

import asyncio
import contextlib

_MOST_BYTES = 4 << 20


async def get(port: int, path: str, timeout: float) -> tuple[int, bytes]:
    """GET from this machine; status and body.

    Raises:
        OSError: no connection, or no answer.
        TimeoutError: not within ``timeout`` seconds.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            whole = await reader.read(_MOST_BYTES)
            while more := await reader.read(_MOST_BYTES):
                whole += more
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    head, _, body = whole.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    if len(parts) < 3 or not parts[1].isdigit():
        raise OSError("no answer in HTTP")
    return int(parts[1]), body
