"""The commands and options of the programs, read from their own help. The pages of docs/reference, the manual pages and
the completions are made from them.
"""
import dataclasses
import os
import re
import subprocess

# Uses the widest columns and leaves out this machine's settings.
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")},
               "HOME": "/", "COLUMNS": "100", "LC_ALL": "C"}
PROGRAMS = ("shoal", "shoal-collective-perf", "shoal-collective-tune")


@dataclasses.dataclass
class Option:
    names: list[str]  # -o, --output; of a positional only its name
    kind: str         # of its value: TEXT; empty: a flag
    help: str
    words: list[str]  # the only values it takes; empty: others
    values: str       # what it takes, and its default


@dataclasses.dataclass
class Command:
    words: list[str]  # ["shoal", "data", "prepare"]
    summary: str      # its line in its parent's help
    about: str
    usage: str
    sections: list[tuple[str, list[Option]]]
    commands: list["Command"]

    def options(self):
        return [option for title, options in self.sections if title != "Positionals" for option in options]

    def all(self):
        return [self, *(below for command in self.commands for below in command.all())]


def said(*command, may_fail=False):
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    if done.returncode != 0 and not may_fail:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout if done.returncode == 0 else None


def all_help(*command):
    """Every option: --help-all if a program has it."""
    return said(*command, "--help-all", may_fail=True) or said(*command, "--help")


def rows(body):
    """The two columns of a section. The second begins at column 30, on the next line where the first is longer."""
    lines = body.splitlines()
    for line, below in zip(lines, lines[1:] + [""]):
        if re.match(r"  \S", line):
            both = (line, below) if below.startswith(" " * 30) else (line[:30], line[30:])
            if not both[1].strip():
                raise RuntimeError(f"no help in '{line}'")
            yield both[0].strip(), both[1].strip()


def option_of(head, text):
    """Of "-o,--output TEXT:{csv,tsv}=csv ... REQUIRED": names, kind, what it takes, default."""
    names, kind, takes, default, several, required = re.fullmatch(
        r"(\S+)(?: ([A-Z]+)(?::(\{.*\}|[^=]*?))?(?:=(.*?))?)?( \.\.\.)?( REQUIRED)?", head).groups()
    words = takes[1:-1].split(",") if takes and takes.startswith("{") else []
    values = ["one of " + ", ".join(words) if words else takes, default and f"default {default}", required and "required"]
    return Option(names.split(","), (kind or "") + (several or ""), text, words,
                  "; ".join(value.strip() for value in values if value))


def train_sections(text):
    """The sections of `shoal train --help-all`, which has a table of its own."""
    parts = re.split(r"^([a-z]+): (.*)\n", text, flags=re.MULTILINE)[1:]
    if len(parts) < 3 * 5:
        raise RuntimeError("`shoal train --help-all` has no sections: its layout has changed")
    for title, body in zip(parts[1::3], parts[2::3]):
        entries = re.split(r"^  (--\S+)(?: ([A-Z]+))?(?=\s)", body, flags=re.MULTILINE)[1:]
        options = []
        for name, kind, help_text in zip(entries[::3], entries[1::3], entries[2::3]):
            whole = " ".join(help_text.split())
            values = re.search(r" ?\(([^()]*(?:\([^()]*\)[^()]*)*; default .*)\)$", whole)
            if not values:
                raise RuntimeError(f"{name}: no default in '{whole}'")
            among = re.match(r"one of (.*?)(?: or null)?;", values[1])
            words = [word for word in among[1].split(", ") if word != '""'] if among else []
            options.append(Option([name], kind or "", whole[:values.start()], words, values[1]))
        yield title, options


def command_of(program, *words, summary=""):
    """A program or one of its commands, with the commands below it."""
    names = [program.name, *words]
    text = all_help(program, *words).replace(f"{program.parent}/", "")
    if names == ["shoal", "train"]:
        about = re.split(r"^[a-z]+: .*\n", text, flags=re.MULTILINE)[0]
        usage = re.search(r"^Usage: (.*)\n", about)
        return Command(names, summary, about[usage.end():], usage[1], list(train_sections(text)), [])
    about, usage, body = re.split(r"^Usage: (.*)\n", text, maxsplit=1, flags=re.MULTILINE)
    parts = re.split(r"^(\w[\w ]*):\n", body, flags=re.MULTILINE)[1:]
    tables = {title.capitalize(): list(rows(body)) for title, body in zip(parts[::2], parts[1::2])}
    below = [command_of(program, *words, name, summary=text) for name, text in tables.pop("Subcommands", [])]
    sections = [(title, [option_of(*row) for row in table]) for title, table in tables.items()]
    return Command(names, summary or about.split(". ")[0].rstrip(".\n"), about, usage, sections, below)


def exit_statuses(shoal):
    """The rows of `shoal help exit-status`: those of all programs, and what single programs differ in."""
    rows_of_all, exceptions = said(shoal, "help", "exit-status").split("\nPrograms that differ:\n")
    return (re.findall(r"^  (\d+(?: \+ N)?) +(.*)$", rows_of_all, re.MULTILINE),
            re.findall(r"^  ([^:]+): (.*)$", exceptions, re.MULTILINE))
