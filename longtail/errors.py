"""The one exception that is meant for the person at the keyboard."""


class LongtailError(ValueError):
    """What was found, where, and what to do, in one sentence.

    The command prints it without a traceback and exits with 2. Our own mistakes stay ordinary exceptions.

    What was found may be anybody's bytes. Control characters become escapes: the sentence stays on its line, and a file
    does not get to talk to the terminal.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence))


class NotHere(LongtailError):
    """Data that would be used as they are, were they on this machine."""
