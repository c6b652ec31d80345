"""The gateway: sockets, lanes, slots, and what operators watch."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.server' "
        "(from the repository root both names resolve, and would be two copies)"
    )
