"""What mkdocs does besides: files outside docs/ as pages, Mermaid from this machine, consoles that copy commands, and
tables of sentences and options that narrow windows do not break.
"""

from __future__ import annotations

import re
from html import escape, unescape
from itertools import cycle
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
MERMAID = "assets/mermaid.min.js"
LINK = re.compile(r"""(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|#|/)([^)\s"#]+)""")
"""A link of Markdown or HTML to a file of the repository: what stands before it, and the path."""
CONSOLE = re.compile(r'(?<=<div class="language-console highlight"><pre)>(.*?)</pre>', re.DOTALL)
"""A console in a page, from the end of its opening tag."""
TAG = re.compile(r"<[^>]*>")
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
"""A command behind its prompt, with the lines that continue it."""
OPTION = re.compile(r"<code>(?=[^<]{1,36}<)(--[\w-]+(?: \S+)?)</code>")
"""An option with its value, as far as a nested list on a telephone has room; a line would end behind its hyphens."""
TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
CELL = re.compile(r"(<t[hd]\b[^>]*)>(.*?)</t[hd]>", re.DOTALL)
"""A cell of a table: its opening tag without the end, and what is in it."""
SENTENCE = 60
"""Characters of a cell with which a table is one of sentences, whose rows stand as blocks in a narrow window."""
SHOWN: dict[str, str] = {}
"""Files outside docs/ by the source of the page that shows them."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README, whatever the pages link to outside docs/, and Mermaid's script."""
    for path in outside({"README.md"} | {f"docs/{page.src_uri}" for page in files.documentation_pages()}):
        SHOWN[page_of(path)] = path
        files.append(File.generated(config, page_of(path), content=shown(path)))
    script = ROOT / "build" / Path(MERMAID).name
    if not script.is_file():
        raise PluginError(f"{script} is missing: `make site` fetches it")
    files.append(File.generated(config, MERMAID, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their pages."""
    own = page.file.src_uri
    source = SHOWN.get(own, f"docs/{own}")
    return LINK.sub(lambda link: link[1] + led(link[2], source, own), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let a console's button copy what is typed, not prompts and output; name cells of tables; keep options whole."""
    html = CONSOLE.sub(lambda console: f' data-copy="{escape(commands(console[1]))}"{console[0]}', html)
    html = TABLE.sub(lambda table: named(table[1]) or table[0], html)
    return OPTION.sub(r'<code class="option">\1</code>', html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid where a page has a diagram; the theme would fetch it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    script = relpath(MERMAID, page.url or ".")
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def commands(console: str) -> str:
    """The commands of a console's HTML, a line each."""
    return "\n".join(COMMAND.findall(words(console)))


def named(table: str) -> str | None:
    """A table whose cells have the names of their columns, for tables of sentences; none for others."""
    head, body = table.split("</thead>")
    names = [words(cell[2]) for cell in CELL.finditer(head)]
    if max((len(words(cell[2])) for cell in CELL.finditer(body)), default=0) < SENTENCE:
        return None
    columns = cycle(names)
    body = CELL.sub(lambda cell: f'{cell[1]} data-column="{escape(next(columns))}">{cell[2]}</td>', body)
    return f"<table data-stacked>{head}</thead>{body}</table>"


def words(html: str) -> str:
    """The text of HTML."""
    return unescape(TAG.sub("", html))


def outside(pages: set[str]) -> list[str]:
    """Files outside docs/ that pages link to, and that those link to, README among them."""
    files: set[str] = set()
    while pages:
        path = pages.pop()
        if not path.startswith("docs/"):
            files.add(path)
        if path.endswith(".md"):
            links = {target(link[2], path) for link in LINK.finditer((ROOT / path).read_text())}
            pages |= {page for page in links if not page.startswith("docs/") and (ROOT / page).is_file()} - files
    return sorted(files)


def target(link: str, source: str) -> str:
    """The path in the repository that a link of a file in it leads to."""
    return normpath(PurePosixPath(source).parent / link)


def page_of(path: str) -> str:
    """The source of the page that shows a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path.removesuffix('.md')}.md"


def shown(path: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    wide = "---\nhide: [navigation, toc]\n---\n"
    return f"{wide}# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text.rstrip()}\n````\n"


def led(link: str, source: str, own: str) -> str:
    """A link of the page ``own``, which shows the file ``source``, to the page of the linked file if it is there."""
    path = target(link, source)
    if not (ROOT / path).is_file():
        return link  # which is then a warning
    return relpath(page_of(path), PurePosixPath(own).parent)
