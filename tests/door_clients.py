"""Clients that can say anything: a raw /ws and a raw Socket.IO connection, for the tests of the doors."""

import asyncio
import contextlib
import json
from typing import Any

import msgpack
import websockets
from fake_gateway import Gateway


class Plain:
    """One connection to /ws."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket

    @classmethod
    async def open(cls, gateway: Gateway, **options: Any) -> "Plain":
        options = {"subprotocols": ["framelane.v1"], "proxy": None, "compression": None, **options}
        return cls(await websockets.connect(gateway.ws, **options))

    @classmethod
    async def ready(cls, gateway: Gateway, hello: dict[str, Any] | None = None) -> "Plain":
        client = await cls.open(gateway)
        await client.say("hello", hello or {})
        name, client.greeting = await client.hear()
        assert name == "ready"
        return client

    greeting: dict[str, Any]

    async def say(self, *event: Any) -> None:
        await self.socket.send(msgpack.packb(event))

    async def hear(self) -> list[Any]:
        async with asyncio.timeout(5):
            return msgpack.unpackb(await self.socket.recv())

    async def closed(self) -> int:
        """Read to the end; the close code."""
        with contextlib.suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(5):
                while True:
                    await self.socket.recv()
        return self.socket.close_code


class Raw:
    """A websocket that speaks Engine.IO by hand."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket

    @classmethod
    async def open(cls, gateway: Gateway, query: str = "EIO=4&transport=websocket", **options: Any) -> "Raw":
        address = f"ws://127.0.0.1:{gateway.port}/socket.io/?{query}"
        return cls(await websockets.connect(address, proxy=None, compression=None, max_size=None, **options))

    @classmethod
    async def connected(cls, gateway: Gateway, auth: str = "") -> "Raw":
        raw = await cls.open(gateway)
        assert (await raw.hear())[0] == "0"
        await raw.socket.send(f"40{auth}")
        assert (await raw.hear()).startswith('40{"sid":')
        assert (await raw.event())[0] == "ready"
        return raw

    @classmethod
    async def msgpack(cls, gateway: Gateway) -> "Raw":
        raw = await cls.open(gateway)
        await raw.hear()
        await raw.socket.send(msgpack.packb({"type": 0, "nsp": "/"}))
        assert msgpack.unpackb(await raw.hear())["type"] == 0
        assert (await raw.packed())["data"][0] == "ready"
        return raw

    async def hear(self) -> Any:
        async with asyncio.timeout(5):
            return await self.socket.recv()

    async def event(self) -> list[Any]:
        text = await self.hear()
        assert text.startswith("42"), text
        return json.loads(text[2:])

    async def packed(self) -> dict[str, Any]:
        return msgpack.unpackb(await self.hear())

    async def closed(self) -> bool:
        with contextlib.suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(5):
                while True:
                    await self.socket.recv()
        return True
