#!/usr/bin/env python3
"""./dev fuzz [TARGET...]: searches for inputs that break a parser (docs/internals/fuzzing.md).

Each TARGET (default: all) runs for --minutes, from tests/fuzz/corpus/TARGET.txt and from what earlier runs left in
build/fuzz/corpus. What breaks it goes to build/fuzz/findings. One line a target at the end; status 1 if anything was
found.
"""
import argparse
import glob
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time

BUILD = "build/fuzz"
CORPUS = "tests/fuzz/corpus"
LONGEST = 16384  # bytes of an input
SECONDS_OF_AN_INPUT = 20
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:symbolize=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "ASAN_SYMBOLIZER_PATH": "/usr/lib/llvm-19/bin/llvm-symbolizer",
    "SHOAL_LOG": "error",
    "TMPDIR": os.path.abspath(f"{BUILD}/tmp-{os.getpid()}"),
    "LLVM_PROFILE_FILE": os.path.abspath(f"{BUILD}/profiles/unused.profraw"),
}
FINDING = r"(?:FINDING: |ERROR: (?=\w+Sanitizer|libFuzzer)|(?=\S+: runtime error))(.*)"
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def unescape(line: str) -> bytes:
    def plain(found: str) -> bytes:
        if found.startswith("\\x"):
            return bytes([int(found[2:], 16)])
        return ESCAPES[found[1]] if found[0] == "\\" else found.encode()

    return b"".join(map(plain, re.findall(r"\\x..|\\.|[^\\]+", line)))


def escape(data: bytes) -> str:
    known = {value[0]: "\\" + key for key, value in ESCAPES.items()}
    line = "".join(known.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)
    line = "\\x23" + line[1:] if line.startswith("#") else line
    return line[:-1] + "\\x20" if line.endswith(" ") else line


def kept_inputs(target: str) -> list[bytes]:
    path = f"{CORPUS}/{target}.txt"
    lines = open(path, encoding="ascii").read().splitlines() if os.path.exists(path) else []
    return [unescape(line) for line in lines if line and not line.startswith("#")]


def unpack(target: str, directory: str) -> None:
    """The kept inputs as files, as libFuzzer reads them, and their words as its dictionary."""
    os.makedirs(directory, exist_ok=True)
    inputs = kept_inputs(target)
    for number, data in enumerate(inputs):
        with open(f"{directory}/kept-{number:04}", "wb") as file:
            file.write(data)
    words = {word for data in inputs for word in re.findall(rb"[A-Za-z_][A-Za-z0-9_.-]{2,30}", data)}
    os.makedirs(f"{BUILD}/words", exist_ok=True)
    with open(f"{BUILD}/words/{target}", "w", encoding="ascii") as file:
        file.writelines(f'"{word}"\n' for word in ["\\x0A%%\\x0A", *sorted(word.decode() for word in words)])


def targets() -> dict[str, tuple[str, list[str]]]:
    """Name -> (program, the parser's sources)."""
    found = {}
    for program in sorted(glob.glob(f"{BUILD}/tests/fuzz/fuzz_*")):
        if os.access(program, os.X_OK) and not os.path.isdir(program):
            for line in run([program, "--list"]).stdout.decode().splitlines():
                name, *sources = line.split()
                found[name] = (program, sources)
    return found


def run(command: list[str], **extra) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=os.environ | ENVIRONMENT | extra, capture_output=True, check=True)


class Search:
    """One target's run of libFuzzer."""

    def __init__(self, name: str, program: str, seconds: int):
        self.name, self.finding, self.file = name, "", ""
        self.executions = self.edges = self.inputs = 0
        corpus = f"{BUILD}/corpus/{name}"
        unpack(name, corpus)
        command = [
            program, f"--target={name}", f"-max_total_time={seconds}", f"-max_len={LONGEST}",
            f"-timeout={SECONDS_OF_AN_INPUT}", "-rss_limit_mb=2500", f"-dict={BUILD}/words/{name}",
            f"-artifact_prefix={BUILD}/findings/{name}-", "-print_final_stats=1", "-reload=0", corpus
        ]
        begun = shown = time.monotonic()
        with open(f"{BUILD}/logs/{name}.txt", "wb") as log, subprocess.Popen(
                command, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            for raw in process.stderr:
                log.write(raw)
                self.read(raw.decode(errors="replace").rstrip())
                if time.monotonic() - shown > (2 if sys.stderr.isatty() else 60):
                    shown = time.monotonic()
                    self.show(shown - begun, seconds)
        self.seconds = time.monotonic() - begun
        if process.returncode != 0 and not self.finding:
            self.finding = f"the program ended with {process.returncode}; see {BUILD}/logs/{name}.txt"

    def read(self, line: str) -> None:
        if found := re.match(r"#(\d+)\s.*cov: (\d+) .*corp: (\d+)", line):
            self.executions, self.edges, self.inputs = (int(number) for number in found.groups())
        elif found := re.match(r"stat::number_of_executed_units: (\d+)", line):
            self.executions = int(found[1])
        elif found := re.search(r"Test unit written to (\S+)", line):
            self.file = found[1]
        elif not self.finding and (found := re.search(FINDING, line)):
            self.finding = found[1]

    def show(self, seconds: float, of: int) -> None:
        begin, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{begin}{self.name}: {seconds:.0f} of {of} s, {self.executions:,} executions, {self.edges:,} edges",
              end=end, file=sys.stderr, flush=True)

    def line(self) -> str:
        return (f"{self.name:<22} {self.executions:>12,} executions {self.executions / self.seconds:>8,.0f}/s "
                f"{self.edges:>6,} edges {self.inputs:>6,} inputs  {'1 finding' if self.finding else '0 findings'}")


def search(chosen: dict, minutes: float) -> int:
    searches = []
    for name, (program, _) in chosen.items():
        searches.append(Search(name, program, max(1, round(60 * minutes))))
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        print(searches[-1].line(), flush=True)
        if searches[-1].finding:
            print(f"    {searches[-1].finding[:500]}", flush=True)
            if searches[-1].file:
                print(f"    `./dev fuzz --keep {searches[-1].file}` adds the input to {CORPUS}/{name}.txt", flush=True)
    return 1 if any(one.finding for one in searches) else 0


def keep(known: dict, files: list[str]) -> int:
    for path in files:
        name = os.path.basename(path).split("-")[0]
        if name not in known:
            print(f"./dev fuzz: '{path}' is not called TARGET-..., by which its target is known", file=sys.stderr)
            return 2
        with open(f"{CORPUS}/{name}.txt", "a", encoding="ascii") as file, open(path, "rb") as data:
            file.write(escape(data.read()) + "\n")
    return 0


def grow(chosen: dict, most: int) -> int:
    """Adds to the kept inputs some that reach edges which they do not: the smallest, `most` bytes of the file."""
    for name, (program, _) in chosen.items():
        kept = f"{BUILD}/kept/{name}"
        shutil.rmtree(kept, ignore_errors=True)
        unpack(name, kept)
        before = set(os.listdir(kept))
        os.makedirs(f"{BUILD}/corpus/{name}", exist_ok=True)
        run([program, f"--target={name}", "-set_cover_merge=1", "-use_counters=0", f"-max_len={most}", kept,
             f"{BUILD}/corpus/{name}"])
        lines = [escape(open(f"{kept}/{file}", "rb").read()) + "\n" for file in set(os.listdir(kept)) - before]
        lines.sort(key=lambda line: (len(line), line))
        bytes_with = list(itertools.accumulate(map(len, lines)))
        added = lines[:sum(size <= most for size in bytes_with)]
        with open(f"{CORPUS}/{name}.txt", "a", encoding="ascii") as file:
            file.writelines(line for line in added if line != "\n")
        print(f"{name:<22} {len(added):>5} more inputs of {len(lines)} that reach more", flush=True)
    return 0


def coverage(chosen: dict) -> int:
    """Branches and lines of each parser's source that the kept inputs of its family reach."""
    totals = [0, 0]
    for program in sorted({program for program, _ in chosen.values()}):
        family = {name: sources for name, (of, sources) in chosen.items() if of == program}
        profiles = []
        for name in family:
            shutil.rmtree(f"{BUILD}/kept/{name}", ignore_errors=True)
            unpack(name, f"{BUILD}/kept/{name}")
            profiles.append(os.path.abspath(f"{BUILD}/profiles/{name}.profraw"))
            try:
                run([program, f"--target={name}", "-runs=0", f"-artifact_prefix={BUILD}/findings/{name}-",
                     f"{BUILD}/kept/{name}"], LLVM_PROFILE_FILE=profiles[-1])
            except subprocess.CalledProcessError:
                print(f"./dev fuzz: a kept input breaks {name}; `./dev fuzz {name}` shows it", file=sys.stderr)
                return 1
        merged = f"{BUILD}/profiles/{os.path.basename(program)}.profdata"
        run(["llvm-profdata-19", "merge", "-sparse", "-o", merged, *profiles])
        sources = {source for sources in family.values() for source in sources}
        shown = run(["llvm-cov-19", "export", "-summary-only", f"-instr-profile={merged}", program]).stdout
        for file in json.loads(shown)["data"][0]["files"]:
            source = next((one for one in sources if file["filename"].endswith("/" + one)), None)
            if source is None:
                continue
            branches, lines = file["summary"]["branches"], file["summary"]["lines"]
            totals = [totals[0] + branches["covered"], totals[1] + branches["count"]]
            share = 100 * branches["covered"] / max(branches["count"], 1)
            print(f"{source:<58} {share:5.1f} % of {branches['count']:>4} branches  "
                  f"{lines['percent']:5.1f} % of {lines['count']:>4} lines", flush=True)
    print(f"all: {100 * totals[0] / max(totals[1], 1):.1f} % of {totals[1]} branches")
    return 0


def main() -> int:
    for folder in (f"{BUILD}/findings", f"{BUILD}/logs", f"{BUILD}/profiles", ENVIRONMENT["TMPDIR"]):
        os.makedirs(folder, exist_ok=True)
    try:
        return act()
    finally:  # an input that ends its program leaves files there
        shutil.rmtree(ENVIRONMENT["TMPDIR"], ignore_errors=True)


def act() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=1, metavar="M", help="of each target; default: 1")
    parser.add_argument("--list", action="store_true", help="the targets and their parsers")
    parser.add_argument("--coverage", action="store_true", help="the branches that the kept inputs reach")
    parser.add_argument("--keep", action="store_true", help="the words are files of build/fuzz/findings: keep them")
    parser.add_argument("--grow", type=int, metavar="BYTES",
                        help="keep inputs of build/fuzz/corpus that reach more edges, at most BYTES of them a target")
    words = parser.parse_args()
    known = targets()
    if words.keep:
        return keep(known, words.targets)
    if wrong := [name for name in words.targets if name not in known]:
        print(f"./dev fuzz: there is no target '{wrong[0]}'; `./dev fuzz --list` names them", file=sys.stderr)
        return 2
    chosen = {name: known[name] for name in words.targets or known}
    if words.list:
        for name, (_, sources) in chosen.items():
            print(f"{name:<22} {' '.join(sources)}")
        return 0
    if words.coverage:
        return coverage(chosen)
    if words.grow:
        return grow(chosen, words.grow)
    print(f"{len(chosen)} targets, {len(chosen) * words.minutes:.0f} minutes", file=sys.stderr, flush=True)
    return search(chosen, words.minutes)


if __name__ == "__main__":
    sys.exit(main())
