"""What SGLang tests for with isinstance."""


class FlashMLASchedMeta:
    """No object is one."""


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
