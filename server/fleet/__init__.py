"""Several replicas behind one address: the command that runs them on one box, and what replicas tell each other."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.server.fleet' "
        "(from the repository root both names resolve, and would be two copies)"
    )
