"""The programs that the wheel brings, as commands of the environment that it is installed in."""
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
