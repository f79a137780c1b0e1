"""The one exception that stops a build."""


class BuildError(Exception):
    """The book cannot be built as it stands: what is wrong, one fault a line."""

    @classmethod
    def unless_empty(cls, faults: list[str]) -> None:
        """Raise with all `faults` at once, so that one build names every one of them."""
        if faults:
            raise cls("\n".join(faults))
