"""Load generators and the experiments built on them."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests' "
        "(from the repository root both names resolve, and would be two copies)"
    )
