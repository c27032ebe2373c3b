#!/usr/bin/env python3
"""Creates the API reference of the public headers: build/docs/html. A warning from Doxygen is an error, and so is a
type or a function without a comment.

The headers' comments are plain // comments. Copies of the headers with Doxygen's /// comments are written to
build/docs/include, line by line. Indented lines of a comment become a block of code or a table.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77  # ctest's status for skipped

DOXYFILE = """
PROJECT_NAME = Shoal
PROJECT_BRIEF = "The headers that are installed"
OUTPUT_DIRECTORY = {out}
INPUT = {out}/include {out}/start.md
USE_MDFILE_AS_MAINPAGE = {out}/start.md
RECURSIVE = YES
STRIP_FROM_PATH = {out}/include
STRIP_FROM_INC_PATH = {out}/include
HIDE_UNDOC_RELATIONS = NO
JAVADOC_AUTOBRIEF = YES
EXCLUDE_SYMBOLS = shoal::detail *::Parts *::Impl
MACRO_EXPANSION = NO
SORT_MEMBER_DOCS = NO
VERBATIM_HEADERS = NO
HAVE_DOT = NO
CLASS_GRAPH = NO
GENERATE_LATEX = NO
QUIET = YES
WARN_NO_PARAMDOC = NO
"""


def public_headers():
    """Pairs of path in the tree and path that users include, from cmake/ShoalInstall.cmake."""
    listed = re.search(r"set\(public_headers\n(.*?)\)", (ROOT / "cmake/ShoalInstall.cmake").read_text(), re.S)
    yield from ((ROOT / name, "shoal/" + name) for name in listed[1].split())
    for path in sorted((ROOT / "include/shoal").glob("*.h")):
        yield path, "shoal/" + path.name


def escaped(text):
    """Escapes commands, tags and links that Doxygen would find in the text; `code` stays unchanged."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"[\\@<>#%&]", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)


def block(texts):
    """The lines of a comment as the same number of lines of a Doxygen comment."""
    lines, listed, shown = [], False, ""
    for number, text in enumerate(texts):
        indented = text.startswith("  ")
        if not indented:
            listed = text.startswith("- ")
        rest = [later for later in texts[number + 1:] if later.strip()]
        last = not rest or not rest[0].startswith("  ")
        if indented and not listed:
            if not shown:
                shown = "code" if any(re.search(r"[;{]$|\);", line.split("//")[0].strip()) for line in texts) else "verbatim"
                text = f"@{shown}{'{.cpp}' if shown == 'code' else ''} " + text
            if last:
                text, shown = f"{text} @end{shown}", ""
        elif shown and not text.strip():
            pass
        else:
            text = escaped(text)
        lines.append(text)
    return lines


def documented(source):
    lines, out = source.split("\n"), []
    at = 0
    while at < len(lines):
        comment = re.match(r"(\s*)//(?: (.*)|$)", lines[at])
        if comment:
            indent, end = comment[1], at
            while end < len(lines) and re.match(rf"{indent}//(?: |$)", lines[end]):
                end += 1
            texts = [line[len(indent) + 3:] for line in lines[at:end]]
            documents = end < len(lines) and lines[end].strip() not in ("", "}") and not texts[0].startswith("---")
            if documents:
                out += [f"{indent}/// {text}".rstrip() for text in block(texts)]
            else:
                out += lines[at:end]
            at = end
            continue
        line = lines[at]
        trailing = re.match(r"(.*?[;,{}\w)])(\s+)//(?!/) (.*)$", line)
        if trailing and re.match(r"\s*(?:struct|class|enum) ", line):
            out.append(f"/** {escaped(trailing[3])} */ {trailing[1]}")
        elif trailing and not re.match(r"\s*}|#", line) and "NOLINT" not in line:
            column = len(trailing[1] + trailing[2])
            out.append(f"{trailing[1]}{trailing[2]}///< {escaped(trailing[3])}")
            while at + 1 < len(lines) and re.match(r"\s{%d}//" % column, lines[at + 1]):
                at += 1
                out.append(" " * column + "///< " + escaped(lines[at].strip()[3:]))
        else:
            out.append(line)
        at += 1
    # The comment at the beginning of a file describes the file.
    return "\n".join(out).replace("#pragma once", "/// @file", 1)


def left_out(warning):
    """True if a declaration needs no comment: a member's name is enough, the comment of a paragraph applies to all
    of its functions, and the first type of a header is the header's subject."""
    found = re.match(r"(.*):(\d+): warning: (Compound|Member) (.*) is not documented", warning)
    if not found:
        return False
    if re.search(r"\((?:variable|enumvalue)\)|\(function\) of (?:class|struct)|\(typedef\)|operator|\(friend\)", found[4]):
        return True
    before = pathlib.Path(found[1]).read_text().split("\n")[:int(found[2]) - 1]
    first = not any(re.match(r"(?:struct|class|enum class) \w+.*[{}]", line) for line in before)
    paragraph = []
    while before and before[-1].strip():
        paragraph.append(before.pop())
    subject = first and found[3] == "Compound" or first and "(enumeration)" in found[4]
    return subject or any(line.startswith("///") for line in paragraph)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=pathlib.Path, default=ROOT / "build" / "docs",
                        help="folder of the reference, which is emptied first")
    out = parser.parse_args().output.resolve()
    if not shutil.which("doxygen"):
        print("there is no doxygen; ./dev docs installs it", file=sys.stderr)
        return SKIPPED
    shutil.rmtree(out, ignore_errors=True)
    rows = []
    for path, name in public_headers():
        copy = out / "include" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        source = path.read_text()
        copy.write_text(documented(source))
        first = " ".join(line[3:] for line in re.match(r"(?://.*\n)+", source)[0].split("\n//\n")[0].split("\n"))
        rows.append((name, escaped(re.split(r"(?<=[.:]) ", first)[0].rstrip(":"))))
    rows.sort(key=lambda row: (row[0].count("/") > 1, row[0]))
    (out / "start.md").write_text(
        "# Shoal\nInclude `<shoal/shoal.h>`. The header of each declaration states its units, ownership, blocking and\n"
        "errors. docs/guides/library.md has four complete programs.\n\n| header | content |\n|---|---|\n"
        + "".join(f"| @ref {name} \"{name}\" | {text} |\n" for name, text in rows))
    (out / "Doxyfile").write_text(DOXYFILE.format(out=out))
    run = subprocess.run(["doxygen", out / "Doxyfile"], capture_output=True, text=True)
    problems = [line for line in (run.stdout + run.stderr).splitlines() if line.strip() and not left_out(line)]
    for line in problems:
        print(line.replace(f"{out}/include/shoal/", ""), file=sys.stderr)
    if problems:
        return 1
    print(out / "html/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
