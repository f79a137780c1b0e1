"""The one exception that stops a build."""

import sys
from collections.abc import Callable
from functools import wraps


class BuildError(Exception):
    """The book cannot be built as it stands: what is wrong, one fault a line."""

    @classmethod
    def unless_empty(cls, faults: list[str]) -> None:
        """Raise with all `faults` at once, so that one build names every one of them."""
        if faults:
            raise cls("\n".join(faults))


def told(main: Callable[[list[str] | None], None]) -> Callable[[list[str] | None], int]:
    """`main` as a command line that returns its exit status: what a `BuildError` says goes to standard error."""

    @wraps(main)
    def command(words: list[str] | None = None) -> int:
        try:
            main(words)
        except BuildError as problem:
            print(problem, file=sys.stderr)
            return 1
        return 0

    return command
