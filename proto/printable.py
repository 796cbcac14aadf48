"""Makes text from other parties safe for a terminal or a log."""


def harmless(text: str, keeps: str = "") -> str:
    """Returns the text, with an escape such as `\\x1b` for each character that is not printable.
    Characters in `keeps` are not escaped.

    Texts such as holders, descriptions, labels and messages from servers may contain terminal commands.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keeps else ascii(each)[1:-1] for each in text
    )
