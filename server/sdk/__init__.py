"""What people connect with: the JavaScript and the Python client."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.server.sdk' "
        "(from the repository root both names resolve, and would be two copies)"
    )
