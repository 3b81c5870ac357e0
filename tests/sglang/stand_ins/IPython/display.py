"""Names that SGLang imports."""


class HTML:
    """Nothing makes one."""


def display(*shown: object) -> None:
    """Nothing calls it."""
