"""The one exception that a user's input can raise."""


class InputError(Exception):
    """Something is wrong with the input: one line that says what, and what to do about it.

    The command line prints the line on standard error and exits with status 2; nothing half-written is left behind.
    """
