"""Many clients of all flavours, each with pictures of its own, coming and going: nobody gets another's answer."""

import asyncio
import random

import msgpack
from door_clients import Plain, Raw
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool


class Visitor:
    """A client that sends what only it could have sent, and believes nothing else."""

    def __init__(self, gateway: Gateway, number: int) -> None:
        self.gateway = gateway
        self.dice = random.Random(number)
        self.name = number
        self.visit = 0
        self.results = 0

    async def run(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            self.visit += 1
            await getattr(self, self.dice.choice(["websocket", "default", "msgpack"]))(self.dice.randint(1, 30))

    def picture(self, seq: int) -> bytes:
        return b"%d/%d/%d" % (self.name, self.visit, seq)

    def check(self, name: str, payload: dict) -> bool:
        """Whether a frame was answered."""
        if name == "result":
            assert payload["head"] == self.picture(payload["seq"])
            self.results += 1
        assert name in ("result", "dropped"), (name, payload)
        return True

    async def websocket(self, frames: int) -> None:
        client = await Plain.ready(self.gateway)
        for seq in range(frames):
            await client.say("frame", seq, self.picture(seq))
            if seq % 2:  # one in work, one in the mailbox
                self.check(*await client.hear())
                self.check(*await client.hear())
        await self.leave(client.socket)

    async def default(self, frames: int) -> None:
        raw = await Raw.connected(self.gateway)
        for seq in range(frames):
            await raw.socket.send(f'451-["frame",{seq},{{"_placeholder":true,"num":0}}]')
            await raw.socket.send(self.picture(seq))
            text = await raw.hear()
            assert text.startswith(f'451-["result",{{"seq":{seq},')
            assert await raw.hear() == self.picture(seq)
            self.results += 1
        await self.leave(raw.socket)

    async def msgpack(self, frames: int) -> None:
        raw = await Raw.msgpack(self.gateway)
        for seq in range(frames):
            await raw.socket.send(msgpack.packb({"type": 2, "nsp": "/", "data": ["frame", seq, self.picture(seq)]}))
            self.check(*(await raw.packed())["data"])
        await self.leave(raw.socket)

    async def leave(self, socket) -> None:
        """With a frame in flight, politely or not."""
        if self.dice.random() < 0.5:
            socket.transport.abort()
        else:
            await socket.close()


async def test_nobody_gets_an_answer_to_anothers_frame() -> None:
    async with run_gateway(EchoPool(credits=2), deadline_ms=5000) as gateway:
        visitors = [Visitor(gateway, number) for number in range(30)]
        until = asyncio.get_running_loop().time() + 3
        await asyncio.gather(*(visitor.run(until) for visitor in visitors))
        await gateway.until_gone()
        books = gateway.books()
        assert books["inside"] == 0
        assert sum(visitor.results for visitor in visitors) <= books["delivered"]
        assert books["refused"] == 0
        assert not gateway.doors.socketio.connections
        assert not gateway.doors.socketio.environ
