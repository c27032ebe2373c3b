#!/usr/bin/env python3
"""tools/check_docs finds each kind of fault in pages that have it, and no fault in correct pages."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

PATH = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_docs"
loader = importlib.machinery.SourceFileLoader("check_docs", str(PATH))
check_docs = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_docs", loader))
loader.exec_module(check_docs)

PLACES = {"docs", "docs/a.md", "docs/guides", "docs/guides/b.md", "README.md"}


def links(text, other="# Other page\n## All of `shoal train`: x\n<a id=\"here\"></a>\n"):
    return list(check_docs.link_problems("docs/a.md", {"docs/a.md": text, "docs/guides/b.md": other}, PLACES))


class CheckDocs(unittest.TestCase):
    def test_finds_files_and_headings(self):
        self.assertEqual(links("# A\n[b](guides/b.md) [h](guides/b.md#all-of-shoal-train-x) [i](guides/b.md#here) "
                               "[a](#a) [r](../README.md) [w](https://example.org/x) [d](guides)"), [])

    def test_names_what_is_missing(self):
        self.assertEqual(links("[b](guides/c.md)"), ["docs/a.md:1: a link to guides/c.md, which the tree lacks"])
        self.assertEqual(links("\n[b](guides/b.md#there)"),
                         ["docs/a.md:2: a link to #there, which docs/guides/b.md lacks"])
        self.assertEqual(links("[b](#none)"), ["docs/a.md:1: a link to #none, which docs/a.md lacks"])

    def test_code_has_no_links(self):
        self.assertEqual(links("```cpp\nf[x](y);\n```\n"), [])

    def test_a_page_that_a_source_names_exists(self):
        self.assertEqual(list(check_docs.mention_problems("x.h", "// docs/a.md, docs/guides/b.md\n", PLACES)), [])
        self.assertEqual(list(check_docs.mention_problems("x.h", "//\n// docs/b.md\n", PLACES)),
                         ["x.h:2: docs/b.md does not exist"])

    def test_style(self):
        style = lambda text, name="docs/a.md": list(check_docs.style_problems(name, text))
        self.assertEqual(style("A run continues.\n| " + 130 * "x" + " |\n```\n" + 130 * "x" + "\n```\n"), [])
        self.assertEqual(style("x" * 121), ["docs/a.md:1: 121 columns; at most 120"])
        self.assertEqual(style("It hangs on time."), ["docs/a.md:1: 'hangs on': write: depends on"])
        self.assertEqual(style("`nobody`\n```\nnobody\n```\n"), [])
        self.assertEqual(style("\n" * 151, "docs/performance.md"), ["docs/performance.md: 151 lines; at most 150"])

    def test_which_pages_count(self):
        counted = [name for name in ("README.md", "docs/a.md", "docs/guides/b.md", "docs/lab/x.md", "nn/README.md")
                   if check_docs.for_users(name)]
        self.assertEqual(counted, ["README.md", "docs/a.md", "docs/guides/b.md"])


if __name__ == "__main__":
    unittest.main()
