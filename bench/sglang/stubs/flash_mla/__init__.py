"""Stands in for flash_mla, whose names SGLang imports on CUDA whatever the attention backend."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise RuntimeError(f"flash_mla.{name} is not installed here")

    return missing
