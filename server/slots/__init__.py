"""Where models run: the states of a slot, its supervisor, its process."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.server.slots' "
        "(from the repository root both names resolve, and would be two copies)"
    )
