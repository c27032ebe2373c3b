#!/usr/bin/env python3
"""Writes train/data/tokenizer/unicode_classes.inc: the character classes that Hugging Face's
tokenizers uses (its regular expressions bring their own Unicode tables, so asking them is the only
way to agree with them on characters that Python, ICU and they know from different years).

Needs the Python package `tokenizers`; run it when that moves to a newer Unicode.
"""
import argparse
import pathlib

import tokenizers
from tokenizers import Regex, pre_tokenizers

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
WORD = 4  # added to the above


def code_points():
    return (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def matching(pattern):
    """Code points that `pattern` matches in the regular expressions of pre-tokenizers."""
    remove = pre_tokenizers.Split(Regex(pattern), "removed")
    text = "".join(map(chr, code_points()))
    kept = set("".join(piece for piece, _ in remove.pre_tokenize_str(text)))
    return {c for c in code_points() if chr(c) not in kept}


def word_characters():
    """Code points that are \\w where added tokens with single_word look: the other engine."""
    whitespace = pre_tokenizers.Whitespace()  # \w+|[^\w\s]+
    return {c for c in code_points() if len(whitespace.pre_tokenize_str(f"a{chr(c)}a")) == 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--output", default=root / "train/data/tokenizer/unicode_classes.inc")
    arguments = parser.parse_args()
    classes = [OTHER] * 0x110000
    for pattern, value in ((r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE)):
        for c in matching(pattern):
            assert classes[c] == OTHER, hex(c)
            classes[c] = value
    for c in word_characters():
        classes[c] += WORD
    ranges = [(c, classes[c]) for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    with open(arguments.output, "w") as out:
        out.write(f"// Made by tools/make_unicode_classes.py from tokenizers {tokenizers.__version__}; "
                  "do not edit.\n// {first code point of a range, class | word bit}\n")
        for row in range(0, len(ranges), 8):
            out.write(" ".join(f"{{0x{c:x},{k}}}," for c, k in ranges[row:row + 8]) + "\n")
    print(f"{len(ranges)} ranges in {arguments.output}")


if __name__ == "__main__":
    main()
