"""A child process for tests of its parent: it says how many messages it was told to say, and then what it was told."""

import os
import signal
import sys

from framelane.preprocess.children import born
from framelane.preprocess.messages import Kind, pack


def main() -> None:
    birth = born(sys.argv)
    for number in range(birth.config["messages"]):
        birth.channel.send(pack(Kind.DONE, request=number))
    match birth.config.get("then"):
        case "wait":
            birth.channel.sock.setblocking(True)
            birth.channel.receive()
        case "refuse":
            with birth.failures():
                raise RuntimeError("no more of it")
        case "spin":
            while True:
                pass
        case "close":
            birth.channel.sock.close()
            signal.pause()
        case "fork":
            forked = os.fork()
            if forked == 0:
                signal.pause()
            birth.channel.send(pack(Kind.DONE, request=forked))
            signal.pause()


if __name__ == "__main__":
    main()
