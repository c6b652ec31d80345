"""The worker pool: frame bytes to tensors, model outputs to finished packets."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.preprocess' "
        "(from the repository root both names resolve, and would be two copies)"
    )
