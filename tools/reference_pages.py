#!/usr/bin/env python3
"""reference_pages.py APPS [--check]: writes docs/reference/options.md, commands.md, environment.md and
exit-status.md from the output of the programs in the directory APPS. --check writes nothing, and fails if a page
differs.
"""
import json
import pathlib
import re
import sys

from program_help import PROGRAMS, all_help, exit_statuses, said, train_sections

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MADE = "<!-- Made by tools/reference_pages.py from the programs' own tables; edit those. -->\n"


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
    for title, entries in train_sections(text):
        page += [f"## {title}", "| option | meaning | values, default |", "|---|---|---|"]
        for option in entries:
            written = f"`{option.names[0]}` {option.kind}" if option.kind else f"`{option.names[0]}`"
            page.append(f"| {written} | {cell(option.help)} | {cell(option.values)} |")
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

    for name in PROGRAMS:
        add(name, apps / name)
    return "\n".join(page)


def environment(shoal):
    page = ["# Environment variables", MADE,
            "`shoal env` prints their values. A value that cannot be read is an error.", "",
            "| variable | kind | default | meaning |", "|---|---|---|---|"]
    page += [f"| `{each['name']}` | {each['kind']} | {cell(each['default']) or 'empty'} | {cell(each['help'])} |"
             for each in json.loads(said(shoal, "env", "--json"))]
    return "\n".join(page) + "\n"


def exit_status_page(shoal):
    statuses, exceptions = exit_statuses(shoal)
    page = ["# Exit statuses", MADE, "`shoal help exit-status` prints them. They hold for all programs.", "",
            "| status | meaning |", "|---|---|"]
    page += [f"| {status} | {cell(meaning)} |" for status, meaning in statuses]
    page += ["", "| program | differs in |", "|---|---|"]
    page += [f"| `{program}` | {cell(difference)} |" for program, difference in exceptions]
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
                       ("environment.md", environment(shoal)), ("exit-status.md", exit_status_page(shoal))):
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
