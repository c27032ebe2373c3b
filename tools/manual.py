#!/usr/bin/env python3
"""manual.py APPS SHARE [PREFIX]: writes manual pages and completions for bash, zsh and fish into the directory SHARE,
made anew, from the help of the programs in the directory APPS. `cmake --install` calls it, with its PREFIX.
"""
import gzip
import json
import pathlib
import re
import shutil
import sys

from program_help import PROGRAMS, command_of, exit_statuses, said


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def paragraphs(text):
    """Lines that begin with blanks are examples."""
    lines = []
    for example, line in [(line.startswith(" "), line) for line in text.strip("\n").splitlines()]:
        lines += [".EX", roff(line), ".EE"] if example else [roff(line) if line else ".PP"]
    return lines


def tagged(rows):
    return [line for head, text in rows for line in (".TP", head, roff(text))]


def manual_page(command, version, more):
    page = [f'.TH {"-".join(command.words).upper()} 1 "" "Shoal {version}" "Shoal"',
            ".SH NAME", f"{roff('-'.join(command.words))} \\- {roff(command.summary)}",
            ".SH SYNOPSIS", f".B {roff(command.usage)}", ".SH DESCRIPTION", *paragraphs(command.about)]
    for title, options in command.sections:
        page.append('.SH ARGUMENTS' if title == "Positionals" else f'.SH "{title.upper()}"')
        for option in options:
            text = f"{option.help} ({option.values})" if option.values else option.help
            kind = f" \\fI{roff(option.kind)}\\fR" if option.kind else ""
            page += tagged([(", ".join(f"\\fB{roff(name)}\\fR" for name in option.names) + kind, text)])
    if command.commands:
        page.append(".SH COMMANDS")
        page += tagged((f".BR {roff('-'.join(below.words))} (1)", below.summary) for below in command.commands)
    page += more
    if len(command.words) > 1:
        page += [".SH SEE ALSO", f".BR {roff('-'.join(command.words[:-1]))} (1)"]
    return "\n".join(page) + "\n"


def of_all_programs(shoal):
    """The sections that only the first page has."""
    statuses, exceptions = exit_statuses(shoal)
    variables = json.loads(said(shoal, "env", "--json"))
    return [".SH EXIT STATUS", *tagged((roff(status), meaning) for status, meaning in statuses),
            ".PP", "Programs that differ:", *tagged((roff(program), text) for program, text in exceptions),
            ".SH ENVIRONMENT", *tagged((f"\\fB{each['name']}\\fR", each["help"]) for each in variables)]


def spelled(option):
    """Without --max_tokens where there is --max-tokens."""
    return [name for name in option.names if "_" not in name or name.replace("_", "-") not in option.names]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def bash(program):
    function = "_" + program.words[0].replace("-", "_")
    below = [quoted(" ".join(command.words)) for command in program.all()[1:]]
    values = [f"    {' | '.join(quoted(' '.join([*command.words, name])) for name in spelled(option))}) "
              f"words={quoted(' '.join(option.words))} ;;"
              for command in program.all() for option in command.options() if option.words]
    known = [f"    {quoted(' '.join(command.words))})\n"
             f"      commands={quoted(' '.join(below.words[-1] for below in command.commands))}\n"
             f"      options={quoted(' '.join(name for option in command.options() for name in spelled(option)))} ;;"
             for command in program.all()]
    return "\n".join([
        f"{function}() {{",
        f"  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command={program.words[0]}",
        "  local commands options words each",
        *([] if not below else ['  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do', '    case "$command $each" in',
                                f"      {' | '.join(below)}) command+=\" $each\" ;;", "    esac", "  done"]),
        "  # Bash takes --name=value for three words.",
        "  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD - 2]}",
        "  [[ $word != = ]] || word=",
        '  case "$command" in', *known, "  esac",
        "  words=$commands",
        "  [[ $word != -* ]] || words=$options",
        *([] if not values else ['  case "$command $before" in', *values, "  esac"]),
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "}", f"complete -o default -F {function} {program.words[0]}", ""])


def zsh(program):
    name = lambda command: "_" + "_".join(command.words)
    escaped = lambda text: re.sub(r"([\\\[\]:$`])", r"\\\1", text)
    lines = [f"#compdef {program.words[0]}"]
    for command in program.all():
        specs = []
        for option in command.options():
            names = spelled(option)
            action = f":{escaped(option.kind)}:{'(' + ' '.join(option.words) + ')' if option.words else '_files'}"
            for each in names:
                takes = ("=" if each.startswith("--") else "+") + f"[{escaped(option.help)}]" + action \
                    if option.kind else f"[{escaped(option.help)}]"
                specs.append(quoted(f"({' '.join(names)}){each}{takes}"))
        lines += [f"{name(command)}() {{"]
        if command.commands:
            rows = " ".join(quoted(f"{below.words[-1]}:{below.summary}") for below in command.commands)
            lines += ["  local curcontext=$curcontext state line", "  typeset -A opt_args", f"  local -a commands=({rows})",
                      "  _arguments -C " + " \\\n    ".join([*specs, "'1: :->command'", "'*:: :->rest'"]),
                      "  case $state in", "    command) _describe command commands ;;",
                      f"    rest) (( ! $+functions[{name(command)}_$words[1]] )) || {name(command)}_$words[1] ;;",
                      "  esac"]
        else:
            lines += ["  _arguments " + " \\\n    ".join([*specs, "'*:file:_files'"])]
        lines += ["}"]
    # The first call loads this file as the function itself.
    return "\n".join([*lines, f'if [[ $funcstack[1] = {name(program)} ]]; then {name(program)} "$@"; '
                      f"else compdef {name(program)} {program.words[0]}; fi", ""])


def fish(program):
    at = "__" + program.words[0].replace("-", "_") + "_at"
    below = " ".join(quoted(" ".join(command.words)) for command in program.all()[1:])
    lines = [f"function {at}", f"    set -l command {program.words[0]}",
             "    for word in (commandline -opc)[2..]",
             f'        contains -- "$command $word" {below}; and set command "$command $word"',
             "    end", '    test "$command" = "$argv"', "end"]
    escaped = lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    for command in program.all():
        start = f"complete -c {program.words[0]} -n {quoted(' '.join([at, *command.words]))}"
        lines += [f"{start} -f -a {each.words[-1]} -d {escaped(each.summary)}" for each in command.commands]
        for option in command.options():
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in spelled(option))
            takes = f" -x -a {escaped(' '.join(option.words))}" if option.words else " -r" if option.kind else ""
            lines.append(f"{start} {names}{takes} -d {escaped(option.help)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    apps, share = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    # Debian's zsh looks for packages' completions in a folder of another name.
    zsh_folder = "vendor-completions" if sys.argv[3:] and pathlib.Path(sys.argv[3]).name == "usr" else "site-functions"
    shutil.rmtree(share, ignore_errors=True)

    def write(path, content):
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_bytes(content)

    version = said(apps / "shoal", "--version").split()[1]
    for program in (command_of(apps / name) for name in PROGRAMS):
        name = program.words[0]
        write(f"bash-completion/completions/{name}", bash(program).encode())
        write(f"zsh/{zsh_folder}/_{name}", zsh(program).encode())
        write(f"fish/vendor_completions.d/{name}.fish", fish(program).encode())
        for command in program.all():
            more = of_all_programs(apps / "shoal") if command.words == ["shoal"] else []
            write(f"man/man1/{'-'.join(command.words)}.1.gz",
                  gzip.compress(manual_page(command, version, more).encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
