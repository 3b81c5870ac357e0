"""What the site makes of Markdown: consoles copy their commands, cells have names, options and lists stay whole."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from markdown import Markdown
from mkdocs.config import load_config

from .pages import ROOT, blocks

PAGES = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]]
PARAGRAPH = re.compile(r"<(?:p|li)>(?:(?!</?(?:p|li|ul|ol)>).)*", re.DOTALL)
COPIED = re.compile(r'<pre data-copy="([^"]*)">')


@pytest.fixture(scope="module")
def site():
    return load_config(str(ROOT / "mkdocs.yml"))


def html_of(site, text: str) -> str:
    """The HTML of a page."""
    (hooks,) = (hook for path, hook in site.hooks.items() if Path(path).name == "hooks.py")
    html = Markdown(extensions=site.markdown_extensions, extension_configs=site.mdx_configs).convert(text)
    return hooks.on_page_content(html, None, site, None)


def copied(site, text: str) -> list[str]:
    """What the consoles of a page copy, in order."""
    return [unescape(words) for words in COPIED.findall(html_of(site, text))]


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


def lost_items(html: str) -> list[str]:
    """Lines of paragraphs that were items of a list."""
    text = re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)
    return [item for paragraph in PARAGRAPH.findall(text) for item in re.findall(r"\n *(?:[*-]|\d+\.) .*", paragraph)]


def test_items_of_lists_are_items(site) -> None:
    assert lost_items(html_of(site, "* a\n\n    b\n* c\n")) == ["\n* c"]
    for page in PAGES:
        assert lost_items(html_of(site, (ROOT / page).read_text())) == [], page


def test_cells_of_sentences_have_names(site) -> None:
    sentence = "A value that takes more than a line of a telephone to be said & understood."
    table = "| key | `type` | |\n|---|---:|---|\n"
    html = html_of(site, f"{table}| a | 1 | {sentence} |\n| b | | `x` |\n\n{table}| short | 2 | |\n")
    assert html.count("<table>") == html.count("<table data-stacked>") == 1
    named = html[html.index("<table data-stacked>") : html.index("</table>")]
    assert re.findall(r'<td[^>]* data-column="(\w*)"', named) == ["key", "type", ""] * 2
    assert "data-column" not in html[html.index("<table>") :]
    assert 'style="text-align: right;" data-column="type">1</td>' in named


def test_options_stay_whole(site) -> None:
    wide = f"--{'a' * 24} {'b' * 24}"
    page = f"With `--check`, `--num-steps N`, `{wide}` or `specc --help`.\n\n```text\n--check\n```\n"
    assert re.findall(r'<code class="option">(.*?)</code>', html_of(site, page)) == ["--check", "--num-steps N"]
