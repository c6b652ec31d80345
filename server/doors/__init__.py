"""Where clients come in: Socket.IO, a plain websocket, HTTP and the pages it serves."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.server.doors' "
        "(from the repository root both names resolve, and would be two copies)"
    )
