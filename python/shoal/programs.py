"""The wheel's programs, as commands of the Python environment in which it is installed."""
import os
import pathlib
import sys
from typing import NoReturn


def _run(name: str) -> NoReturn:
    path = pathlib.Path(__file__).parent / "bin" / name
    os.execv(path, [name, *sys.argv[1:]])


def shoal() -> NoReturn:
    _run("shoal")


def collective_perf() -> NoReturn:
    _run("shoal-collective-perf")


def collective_tune() -> NoReturn:
    _run("shoal-collective-tune")
