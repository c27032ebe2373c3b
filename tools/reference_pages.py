#!/usr/bin/env python3
"""reference_pages.py APPS [--check]: writes docs/reference/options.md, commands.md, environment.md and
exit-status.md from the output of the programs in the directory APPS. --check writes nothing, and fails if a page
differs.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MADE = "<!-- Made by tools/reference_pages.py from the programs' own tables; edit those. -->\n"
# Uses the widest columns and leaves out this machine's settings.
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")},
               "HOME": "/", "COLUMNS": "100", "LC_ALL": "C"}


def said(*command, may_fail=False):
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    if done.returncode != 0 and not may_fail:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout if done.returncode == 0 else None


def all_help(*command):
    """Every option: --help-all if a program has it."""
    return said(*command, "--help-all", may_fail=True) or said(*command, "--help")


def cell(text):
    """The text of a table's cell, with Markdown's special characters escaped."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([|<>*\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def options(shoal):
    """Sections of `shoal train --help-all` as tables."""
    text = all_help(shoal, "train")
    page = ["# Options of shoal train", MADE,
            "In a JSON file of options a name stands without dashes; what the command line says wins. The same names "
            "are",
            "hyperparameters of a SageMaker job. Names are those of Hugging Face's `TrainingArguments` and SMP's "
            "`parameters`.", ""]
    sections = re.split(r"^([a-z]+): (.*)\n", text, flags=re.MULTILINE)[1:]
    if len(sections) < 3 * 5:
        raise RuntimeError("`shoal train --help-all` has no sections: its layout has changed")
    for _, title, body in zip(sections[::3], sections[1::3], sections[2::3]):
        page += [f"## {title}", "| option | meaning | values, default |", "|---|---|---|"]
        entries = re.split(r"^  (--\S+)(?: ([A-Z]+))?(?=\s)", body, flags=re.MULTILINE)[1:]
        for name, kind, help_text in zip(entries[::3], entries[1::3], entries[2::3]):
            whole = " ".join(help_text.split())
            values = re.search(r" ?\(([^()]*(?:\([^()]*\)[^()]*)*; default .*)\)$", whole)
            if not values:
                raise RuntimeError(f"{name}: no default in '{whole}'")
            written = f"`{name}` {kind}" if kind else f"`{name}`"
            page.append(f"| {written} | {cell(whole[:values.start()])} | {cell(values[1])} |")
        page.append("")
    return "\n".join(page)


def commands(apps):
    """The printed help of every program and subcommand."""
    page = ["# Programs and their commands", MADE, "`shoal train` has [a page of its own](options.md).", ""]

    def add(title, *command):
        text = all_help(*command)
        page.extend([f"## {title}", "```text", text.replace(str(apps) + "/", "").strip(), "```", ""])
        block = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.MULTILINE | re.IGNORECASE)
        for name in re.findall(r"^  (\w[\w-]*)", block[1], re.MULTILINE) if block else ():
            if (title, name) != ("shoal", "train"):
                add(f"{title} {name}", *command, name)

    add("shoal", apps / "shoal")
    for name in ("shoal-collective-perf", "shoal-collective-tune"):
        add(name, apps / name)
    return "\n".join(page)


def environment(shoal):
    page = ["# Environment variables", MADE,
            "`shoal env` prints their values. A value that cannot be read is an error.", "",
            "| variable | kind | default | meaning |", "|---|---|---|---|"]
    page += [f"| `{each['name']}` | {each['kind']} | {cell(each['default']) or 'empty'} | {cell(each['help'])} |"
             for each in json.loads(said(shoal, "env", "--json"))]
    return "\n".join(page) + "\n"


def exit_statuses(shoal):
    rows, exceptions = said(shoal, "help", "exit-status").split("\nPrograms that differ:\n")
    page = ["# Exit statuses", MADE, "`shoal help exit-status` prints them. They hold for all programs.", "",
            "| status | meaning |", "|---|---|"]
    page += [f"| {status} | {cell(meaning)} |"
             for status, meaning in re.findall(r"^  (\d+(?: \+ N)?) +(.*)$", rows, re.MULTILINE)]
    page += ["", "| program | differs in |", "|---|---|"]
    page += [f"| `{program}` | {cell(difference)} |"
             for program, difference in re.findall(r"^  ([^:]+): (.*)$", exceptions, re.MULTILINE)]
    return "\n".join(page) + "\n"


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--check"]
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    apps = pathlib.Path(arguments[0]).resolve()
    shoal = apps / "shoal"
    stale = []
    for name, text in (("options.md", options(shoal)), ("commands.md", commands(apps)),
                       ("environment.md", environment(shoal)), ("exit-status.md", exit_statuses(shoal))):
        path = REFERENCE / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
            print(path)
    if "--check" in sys.argv and stale:
        print(f"docs/reference: {', '.join(stale)} differ from what the programs print; "
              f"run tools/reference_pages.py {arguments[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
