"""The questions that are put to a server under overload, each with its bar."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests.overload.scenarios' "
        "(from the repository root both names resolve, and would be two copies)"
    )
