#!/usr/bin/env python3
"""Writes train/data/tokenizer/unicode_classes.inc, bert_classes.inc, grapheme_classes.inc and lower_case.inc: the
character classes and lower-case letters of Hugging Face's tokenizers. Its parts contain Unicode tables of different
years, so only queries to it give the same result for all characters.

Needs the Python package `tokenizers`. Run it when that package moves to a newer Unicode.
"""
import argparse
import pathlib
import struct

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
WORD = 4  # added to one of the above


def code_points():
    return (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def matching(pattern):
    """Code points that `pattern` matches in the regular expressions of pre-tokenizers."""
    remove = pre_tokenizers.Split(Regex(pattern), "removed")
    text = "".join(map(chr, code_points()))
    kept = set("".join(piece for piece, _ in remove.pre_tokenize_str(text)))
    return {c for c in code_points() if chr(c) not in kept}


def word_characters():
    """Code points that are \w for added tokens with single_word, which use the other regex engine."""
    whitespace = pre_tokenizers.Whitespace()  # \w+|[^\w\s]+
    return {c for c in code_points() if len(whitespace.pre_tokenize_str(f"a{chr(c)}a")) == 1}


def bert_normalizer(**asked):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**flags, **asked})


def bert_classes():
    """Bits as in bert_unicode.h: what clean_text removes (1) and makes a space (2), what
    strip_accents removes (4), what BertPreTokenizer isolates (8) and splits at (16), what
    handle_chinese_chars puts spaces around (32)."""
    clean, chinese = bert_normalizer(clean_text=True), bert_normalizer(handle_chinese_chars=True)
    strip, words = bert_normalizer(strip_accents=True), pre_tokenizers.BertPreTokenizer()
    classes = [0] * 0x110000
    for c in code_points():
        text = f"a{chr(c)}b"
        cleaned = clean.normalize_str(text)
        pieces = [piece for piece, _ in words.pre_tokenize_str(text)]
        classes[c] = ((cleaned == "ab") + 2 * (cleaned == "a b") + 4 * (strip.normalize_str(text) == "ab")
                      + 8 * (len(pieces) == 3) + 16 * (pieces == ["a", "b"])
                      + 32 * (chinese.normalize_str(text) == f"a {chr(c)} b"))
    return classes


def lower_case_runs():
    """[first, last, step, distance]: every `step`-th code point from first to last becomes itself + distance."""
    lower, runs = bert_normalizer(lowercase=True), []
    for c in code_points():
        to = lower.normalize_str(chr(c))
        if to == chr(c) or c == 0x130:  # the one letter that becomes two: bert_normalizer.cc has it
            continue
        assert len(to) == 1, hex(c)
        distance = ord(to) - c
        last = runs[-1] if runs else None
        if last and last[3] == distance and (last[0] == last[1] and c - last[1] <= 2 or c - last[1] == last[2]):
            last[2] = c - last[1]
            last[1] = c
        else:
            runs.append([c, c, 1, distance])
    return runs


def grapheme_probe():
    """A normalizer that makes one letter of every grapheme cluster of fewer than six bytes that starts with a letter
    a or beyond ASCII, and one of each such character in longer ones."""
    keys, units = [ord("a"), *range(0xC2, 0xF5)], [0] * 2048  # a double array of depth one: keys are lead bytes
    units[0] = 256 << 10
    for key in keys:
        at, leaf = 256 ^ key, 1024 + key
        units[at] = key | 1 << 8 | (at ^ leaf) << 10
        units[leaf] = 1 << 31  # the value 0, for the letter's position
    probe = normalizers.Precompiled(struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + b"Y\0")
    return lambda *parts: len(probe.normalize_str("".join(p if isinstance(p, str) else chr(p) for p in parts)))


def grapheme_classes():
    """Bits as in graphemes.h, found by properties that distinguish clusters of six bytes or more."""
    letters, ka, virama, acute, classes = grapheme_probe(), "\u0915", "\u094d", "\u0301", [0] * 0x110000
    strip = normalizers.StripAccents()
    for c in code_points():
        if c < 0x80:
            classes[c] = 32 if c < 0x20 or c == 0x7F else 0
            continue
        extends = letters("a", c) == 1
        classes[c] = (extends + 2 * (letters(c, "a") == 1) + 4 * (letters(c, virama, ka, acute) == 4 and c > 0x7FF)
                      + 8 * (extends and letters(ka, c, ka, acute) == 4)
                      + 16 * (extends and letters(ka, virama, c, ka, acute) == 5)
                      + 32 * (c < 0x10000 and not extends and letters(c, acute) == 2)
                      + 64 * (letters(c, "\u200d\u00a9", acute) == 4)
                      + 128 * (strip.normalize_str(f"a{chr(c)}b") == "ab"))
    return classes


def write(path, about, entries):
    with open(path, "w") as out:
        out.write(f"// Made by tools/make_unicode_classes.py from tokenizers {tokenizers.__version__}; "
                  f"do not edit.\n// {about}\n")
        for row in range(0, len(entries), 8):
            out.write(" ".join(entries[row:row + 8]) + "\n")
    print(f"{len(entries)} entries in {path}")


def ranges(classes):
    return [f"{{0x{c:x},{classes[c]}}}," for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--output", type=pathlib.Path, default=root / "train/data/tokenizer", help="folder")
    folder = parser.parse_args().output
    classes = [OTHER] * 0x110000
    for pattern, value in ((r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE)):
        for c in matching(pattern):
            assert classes[c] == OTHER, hex(c)
            classes[c] = value
    for c in word_characters():
        classes[c] += WORD
    write(folder / "unicode_classes.inc", "{first code point of a range, class | word bit}", ranges(classes))
    write(folder / "bert_classes.inc", "{first code point of a range, bits of bert_unicode.h}", ranges(bert_classes()))
    write(folder / "grapheme_classes.inc", "{first code point of a range, bits of graphemes.h}", ranges(grapheme_classes()))
    write(folder / "lower_case.inc", "{first, last, step, distance to its lower case}",
          [f"{{0x{first:x},0x{last:x},{step},{distance}}}," for first, last, step, distance in lower_case_runs()])


if __name__ == "__main__":
    main()
