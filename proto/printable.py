"""Text that others wrote, as a terminal or a log may show it."""


def harmless(text: str, keeps: str = "") -> str:
    """The text, with an escape such as `\\x1b` for each character that is not printable. `keeps`: those that may stay.

    Holders, descriptions, labels and messages of servers may hold what commands a terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keeps else ascii(each)[1:-1] for each in text
    )
