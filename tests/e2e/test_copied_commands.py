"""What the button of a console on the site copies: each command as it is typed, and nothing of what it prints."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from markdown import Markdown
from mkdocs.config import load_config

from .pages import ROOT, blocks

PAGES = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]]
COPIED = re.compile(r'<pre data-copy="([^"]*)">')


@pytest.fixture(scope="module")
def site():
    return load_config(str(ROOT / "mkdocs.yml"))


def copied(site, text: str) -> list[str]:
    """What the consoles of a page copy, in order."""
    (hooks,) = (hook for path, hook in site.hooks.items() if Path(path).name == "hooks.py")
    html = Markdown(extensions=site.markdown_extensions, extension_configs=site.mdx_configs).convert(text)
    return [unescape(words) for words in COPIED.findall(hooks.on_page_content(html, None, site, None))]


def test_consoles_copy_their_commands(site) -> None:
    count = 0
    for page in PAGES:
        typed = [block.commands() for block in blocks(page) if block.language == "console"]
        expected = ["\n".join(command for command, _ in commands) for commands in typed]
        assert copied(site, (ROOT / page).read_text()) == expected, page
        count += len(expected)
    assert count > 20


def test_prompts_stand_in_consoles_alone() -> None:
    for page in PAGES:
        fence, prompts = None, list[str]()
        for line in (ROOT / page).read_text().splitlines():
            if line.lstrip().startswith("```"):
                fence = line.strip(" `") if fence is None else None
            elif fence not in (None, "console") and line.lstrip().startswith("$ "):
                prompts.append(line)
        assert prompts == [], page


def test_output_and_code_are_left_out(site) -> None:
    console = "$ echo '<b>' && \\\n    echo \"&\"\n<b>\n\n$5 is no prompt\n$ true\n"
    page = f"```console\n{console}```\n\n```python\nx = 1\n```\n\n```text\n$ a word\n```\n"
    assert copied(site, page) == ["echo '<b>' && \\\n    echo \"&\"\ntrue"]
