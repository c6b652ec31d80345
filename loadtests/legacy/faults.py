"""The three faults of the "before" server. Each can be switched off alone.

    fault       while it is there                                      switched off
    inline      the event loop that owns the sockets decodes images    images are worked on beside the loop, and it goes
                and pre- and postprocesses them, one after another     on serving sockets meanwhile
    process     one process does everything: sockets, images, models   what can leave the process does: the models, and
                                                                       with ``inline`` off the images too
    broadcast   every result is emitted to every client                a result goes to the client that sent the frame

What ``inline`` and ``process`` make of a frame together (``runners.py``):

                      process                                    no process
    inline            all of it on the loop                      images on the loop, models in processes, awaited
    no inline         all of it in threads, which share the      all of it in processes, one per core
                      interpreter's lock with the sockets
"""

from __future__ import annotations

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Which faults are there; see the module."""

    inline: bool = True
    process: bool = True
    broadcast: bool = True

    def __str__(self) -> str:
        return ", ".join(name for name in self.__struct_fields__ if getattr(self, name)) or "none"
