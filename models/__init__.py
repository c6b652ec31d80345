"""Models, pipelines and the pictures they work on: what an author of a pipeline imports."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.models' "
        "(from the repository root both names resolve, and would be two copies)"
    )
