"""Load that does not wait for answers: what a server does when it is offered more than it can."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests.overload' "
        "(from the repository root both names resolve, and would be two copies)"
    )
