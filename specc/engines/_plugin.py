"""How a program comes into an engine, and which of several: what the adapters of all engines share."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

CHOICE = "SPECC_PROGRAM"
"""The environment variable that names the package of a program that must run: a server in which it cannot, ends."""
TOKENS = "SPECC_TOKEN_MAP"
"""That of a file with the tokens that a program's draft scores, a JSON array, where the engine's own scores all."""
NONE = "none"
"""Its value where no program may run: the engine is as it is without a wheel."""
HOTTEST = float(1 << 20)
"""The highest temperature of programs. Tokens are as likely as each other before that."""
SEEDS = (1 << 63) - 1
"""Seeds of programs are from 0 and below; those of engines are any integers of 64 bits."""
_Made = TypeVar("_Made")


class ServerError(RuntimeError):
    """The server was told something that it cannot do: it ends, whether or not a program must run."""


class MisfitError(RuntimeError):
    """What a program and its server differ in, where that is known only when the program is bound."""


def offer(
    package: Any,
    engine: str,
    tested: Sequence[str],
    place: str,
    replace: Callable[[list[Any]], None],
) -> None:
    """Add a program to those that an engine may choose among; `replace` puts them into it, once.

    Nothing is done where `SPECC_PROGRAM` says that none may run.

    Args:
        package: of the program.
        engine: as people write it; its distribution is called the same.
        tested: the versions that the adapter is tested with, in any build.
        place: name of a module of the engine's, which keeps the list for all wheels of a process.
        replace: called with the list, before anything is in it; it raises where anything is missing that the adapter
            needs. A version that is not tested, and has all of that, runs with a warning.

    Raises what `replace` raises, and RuntimeError for a program of another version of specc than those that are there;
    SystemExit instead if the program must run.

    """
    if os.environ.get(CHOICE) == NONE:
        _logger(engine).info("specc: %s does not run: %s=%s", package.__name__, CHOICE, NONE)
        return
    try:
        version = importlib.metadata.version(engine.lower())
        is_tested = version.partition("+")[0] in tested
        versions = " and ".join((", ".join(tested[:-1]), tested[-1]) if len(tested) > 1 else tested)
        # One list for all wheels, each of which has a copy of the adapter: the first one's runs them all.
        programs = vars(importlib.import_module(place)).setdefault("specc_programs", [])
        made_by = [program.__version__.partition("+")[0] for program in (package, *programs)]
        if len(set(made_by)) > 1:
            raise RuntimeError(f"{package.__name__} is of specc {made_by[0]}, {programs[0].__name__} of {made_by[1]}")
        if not programs:
            replace(programs)
            if not is_tested:
                text = (
                    "specc: tested with %s %s, this is %s: all that programs must have is there, nothing else is known"
                )
                _logger(engine).warning(text, engine, versions, version)
        if package not in programs:
            programs.append(package)
    except Exception as error:
        if os.environ.get(CHOICE) == package.__name__:
            raise SystemExit(f"{CHOICE}={package.__name__}: {error}") from error
        raise


def title(package: Any) -> str:
    """The name and version of a program: no other that an engine may choose has both."""
    return f"{package.__name__} {package.__version__}"


def tried(make: Callable[[], _Made], engine: str, *, must: bool = False) -> _Made | None:
    """What is made; None after logging why not, unless it `must` be made or `SPECC_PROGRAM` says that one must run.

    A `MisfitError` is logged in a line, anything else with its traceback.
    """
    try:
        return make()
    except ServerError:
        raise
    except Exception as error:
        if must or os.environ.get(CHOICE):
            raise
        if isinstance(error, MisfitError):
            text = "specc: the program does not fit this server: %s. %s's own steps run"
            _logger(engine).warning(text, error, engine)
            return None
        _logger(engine).exception("specc: no program runs, %s's own steps do", engine)
        return None


def chosen(programs: Sequence[Any], engine: str, misfits: Callable[[Any], list[str]]) -> Any | None:
    """The program that fits, by what is in the way of each, if there is one.

    RuntimeError when `SPECC_PROGRAM` names one that does not, ServerError when several do and it names none.
    """
    wanted = os.environ.get(CHOICE) or None
    faults = {package: misfits(package) for package in programs if wanted in (None, package.__name__)}
    if wanted is not None and not faults:
        raise RuntimeError(f"{CHOICE}={wanted}: no such program is installed for {engine}")
    fitting = [package for package, reasons in faults.items() if not reasons]
    if not fitting:
        for package, reasons in faults.items():
            message = f"specc: {package.__name__} does not fit this server: {'; '.join(reasons)}"
            if wanted is not None:
                raise RuntimeError(message)
            _logger(engine).warning("%s. %s's own steps run", message, engine)
        return None
    if len(fitting) > 1:
        names = ", ".join(package.__name__ for package in fitting)
        raise ServerError(f"specc: several programs fit this server, set {CHOICE} to one of {names}")
    return fitting[0]


def word(variable: str, words: Collection[str], default: str) -> str:
    """The value of an environment variable. ServerError unless it is one of `words`."""
    value = os.environ.get(variable, default)
    if value not in words:
        raise ServerError(f"{variable} is one of {', '.join(words)}, got {value!r}")
    return value


def _logger(engine: str) -> logging.Logger:
    """A child of the engine's own logger, which it may have set up alone."""
    return logging.getLogger(f"{engine.lower()}.specc")
