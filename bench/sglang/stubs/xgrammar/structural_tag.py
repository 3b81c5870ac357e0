"""Its models by any name."""

from xgrammar import __getattr__ as __getattr__
