"""Pieces of prompts for engines, in the language that the example models were trained on."""

PREAMBLES = (
    "import os\nimport sys\n\n\ndef main(argv=None):\n",
    'class Node:\n    """A node of a tree."""\n\n    def __init__(self, value, left=None, right=None):\n',
    "for name in sorted(names):\n    if not isinstance(value, str):\n        raise TypeError(",
    '"""Read and write files of settings."""\n\nimport re\nimport json\n\nfrom collections import namedtuple\n\n',
    "def parse(text, *, strict=False):\n    lines = text.split('\\n')\n    for number, line in enumerate(lines):\n",
)
TAILS = (
    "    return ",
    "    def close(self):\n        ",
    "try:\n    ",
    "class Error(Exception):\n    ",
    "    if not self._",
    "with open(path) as file:\n    ",
    "# The first ",
    "    assert isinstance(",
)
