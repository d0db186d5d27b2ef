"""The one exception that is meant for the person at the keyboard."""


class LongtailError(ValueError):
    """What was found, where, and what to do, in one sentence.

    The command prints it without a traceback and exits with 2. Our own mistakes stay ordinary exceptions.
    """
