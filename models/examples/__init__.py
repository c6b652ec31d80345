"""Worked examples of an author's own pipeline: one module each, and a folder of models beside it."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.models.examples' "
        "(from the repository root both names resolve, and would be two copies)"
    )
