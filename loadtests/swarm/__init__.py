"""The swarm: Locust users that stream a moving face, as audiences do, and an honest account of what they got."""

if not __name__.startswith("framelane."):
    raise ImportError(
        f"this package was imported as {__name__!r}: import it as 'framelane.loadtests.swarm' "
        "(from the repository root both names resolve, and would be two copies)"
    )
