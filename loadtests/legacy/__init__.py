"""The server as it was before: one process, one loop, every answer to everybody."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests.legacy' "
        "(from the repository root both names resolve, and would be two copies)"
    )
