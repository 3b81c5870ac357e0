"""Names for annotations."""

from xgrammar import __getattr__  # noqa: F401
