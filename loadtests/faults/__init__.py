"""Breaks a server that serves, in one way after another, and tells what its clients notice."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests.faults' "
        "(from the repository root both names resolve, and would be two copies)"
    )
