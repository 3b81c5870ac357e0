"""Render kernel templates: flags decide which arguments and statements exist, nothing else varies.

Pure functions of their arguments and of the template files: no time, no environment, no set order.
"""

import functools
import hashlib
import keyword
from collections.abc import Iterable, Mapping, Sequence

import jinja2
import jinja2.meta
import jinja2.nodes

from specc.compiler.codegen.imports import reached
from specc.compiler.kernels.writing.family import Spec
from specc.compiler.kernels.writing.functions import device_code
from specc.compiler.support.files.templates import lib_names, read_template

COUNTS = frozenset({"values"})
"""The flags that are numbers: how often a loop of a template writes its lines."""
GIVEN = frozenset({"spec", "numbers"})
"""What every template is given besides flags."""
COMPOSED = "composed"
"""The template of kernels that bring their statements."""


def _template_name(stem: str) -> str:
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise ValueError(f"not the stem of a kernel template: {stem!r}")
    return f"kernels/{stem}.py.jinja"


def _load(name: str) -> str | None:
    try:
        return read_template(name)
    except FileNotFoundError:
        return None


@functools.cache
def _environment() -> jinja2.Environment:
    """The one Jinja environment of kernels. An unknown name is an error, not an empty string."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_load),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        line_statement_prefix="#%",
        line_comment_prefix="##",
    )


@functools.cache
def template_flags(stem: str) -> frozenset[str]:
    """The names of the flags of a template: the variables it reads and does not set, `range` aside.

    Raises FileNotFoundError if there is no template of that stem, ValueError if `stem` is no identifier.
    """
    return frozenset(jinja2.meta.find_undeclared_variables(_parse(stem)) - _environment().globals.keys() - GIVEN)


@functools.cache
def looped_flags(stem: str) -> frozenset[str]:
    """The flags of a template that are tuples of names: its loops run over them, alone or added up."""
    loops = [loop.iter for loop in _parse(stem).find_all(jinja2.nodes.For)]
    tuples = jinja2.nodes.List([loop for loop in loops if not isinstance(loop, jinja2.nodes.Call)])  # `range` is called
    return frozenset(name.name for name in tuples.find_all(jinja2.nodes.Name)) - GIVEN


def template_digest(stem: str) -> str:
    """The sha256 (hex) of a template's text, before rendering. Raises as `template_flags`."""
    return hashlib.sha256(read_template(_template_name(stem)).encode()).hexdigest()


def lib_sources(kernels: Iterable[str] | None = None) -> dict[str, str]:
    """The shared device code: path relative to the folder of the rendered kernels -> text, in path order.

    Write these beside the kernels: a rendered kernel imports `.lib.<module>`. With the texts of `kernels`, only what
    these import, directly or not, files of plugins among it.
    """
    if kernels is None:
        return {name: read_template(name) for name in lib_names()}
    return reached(kernels, device_code)


def _parse(stem: str) -> jinja2.nodes.Template:
    return _environment().parse(read_template(_template_name(stem)))


def render_kernel(spec: Spec, header: Sequence[str]) -> str:
    """The Python source of one kernel; the function is called by its family's stem, and takes what the spec says.

    A composed kernel brings its statements. A template of the stem has those of others. The spec's flags give every
    flag of the template a bool, those in COUNTS a number, those of `looped_flags` different identifiers, and name
    nothing else. `header` is put on top, one comment line per entry. Raises ValueError when the flags do not match the
    template or a header line is not one printable ASCII line, FileNotFoundError when there is no template of that stem.
    """
    stem = COMPOSED if spec.body else spec.family
    _check_flags(stem, spec.flags)
    for line in header:
        if not line.isascii() or (line and not line.isprintable()):
            raise ValueError(f"{stem}: not a printable ASCII line: {line!r}")
    top = "".join(f"# {line}".rstrip() + "\n" for line in header)
    numbers = [f'"{argument.name}"' for argument in spec.arguments if not argument.type.startswith("*")]
    return top + _environment().get_template(_template_name(stem)).render(spec.flags, spec=spec, numbers=numbers)


def _check_flags(stem: str, flags: Mapping[str, int | tuple[str, ...]]) -> None:
    wanted = template_flags(stem)
    missing, unknown = sorted(wanted - flags.keys()), sorted(flags.keys() - wanted)
    if missing or unknown:
        raise ValueError(f"{stem}: missing flags {missing}, unknown flags {unknown}")
    for words, fits, names in (
        ("a bool", _is_bool, flags.keys() - COUNTS - looped_flags(stem)),
        ("a count", _is_count, flags.keys() & COUNTS),
        ("different identifiers", _are_identifiers, flags.keys() & looped_flags(stem)),
    ):
        if wrong := sorted(name for name in names if not fits(flags[name])):
            raise ValueError(f"{stem}: not {words}: {wrong}")


def _is_bool(flag: object) -> bool:
    return type(flag) is bool


def _is_count(flag: object) -> bool:
    return type(flag) is int and flag >= 0


def _are_identifiers(flag: object) -> bool:
    if type(flag) is not tuple or len(set(flag)) < len(flag):
        return False
    return all(isinstance(name, str) and name.isascii() and name.isidentifier() for name in flag)
