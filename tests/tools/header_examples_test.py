#!/usr/bin/env python3
"""Each installed header begins with an example and has at most 150 lines; all examples compile, as one source.
header_examples_test.py COMPILER needs only the installed headers. An example is what tools/reference.py shows as C++:
an indented block of a comment. It is compiled in its header's namespace: as it is if it has a main function, otherwise
as the body of a function. GIVEN declares the names that examples use without declaring them."""
import importlib.util
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = shlex.split(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ["c++"]
LOADED = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
reference = importlib.util.module_from_spec(LOADED)
LOADED.loader.exec_module(reference)

GIVEN = """
extern shoal::Job& job;
extern shoal::Model& model;
extern shoal::Optimizer& optimizer;
extern const shoal::Text& text;
extern const shoal::Dataset& dataset;
extern shoal::ParallelPlan& plan;
extern shoal::MemoryResource& memory;
extern shoal::collectives::Communicator& communicator;
extern shoal::nn::Context& context;
extern const shoal::nn::ChainInput& input;
extern shoal::nn::Chain& chain;
extern shoal::nn::Unit& unit;
extern shoal::nn::Slot<shoal::nn::NormLike>& norm;
extern shoal::nn::Parameter *scale, *weight;
extern shoal::nn::Value x, scores;
extern shoal::Tensor ids, targets;
extern const shoal::nn::MlpConfig& config;
extern std::vector<std::unique_ptr<shoal::nn::Unit>> units;
struct Head final : shoal::nn::LossUnit {
  shoal::nn::Value scores(shoal::nn::Context&, const shoal::nn::Value&, const shoal::nn::ChainInput&) override;
  shoal::nn::LossOutput loss(shoal::nn::Context&, const shoal::nn::Value&, const shoal::nn::ChainInput&) override;
};
extern float *data, *on_host, *on_device;
extern std::int64_t count, bytes;
shoal::Tensor negated(shoal::nn::Context&, const shoal::Tensor&);
std::vector<std::int32_t> digits(std::int64_t number);
void compute_meanwhile();
"""


def examples(documented):
    """Each example and its first line, from a header as tools/reference.py gives it to Doxygen."""
    text = re.sub(r"^[ \t]*///(?: |$)", "", documented, flags=re.M)
    for found in re.finditer(r"@code\{\.cpp\}(.*?)@endcode", text, re.S):
        yield found[1], text.count("\n", 0, found.start()) + 1


def source(headers):
    """All examples as one source. The compiler names the lines of the headers."""
    parts = [f"#include <{name}>\n" for name in headers] + [GIVEN]
    for name, header in headers.items():
        spaces = [found for found in re.findall(r"^namespace (shoal[\w:]*) \{", header, re.M)]
        for code, line in examples(reference.documented(header)):
            function = "" if "int main(" in code else f"void example_{len(parts)}() "
            body = f'{{\n#line {line} "{name}"\n{code}\n}}'
            inside = f"{function}{{{body}}}" if function else body[1:-1]
            parts.append(f"namespace {spaces[-1] if spaces else 'given'} {{\n{inside}\n}}\n")
    return "".join(parts)


def compiled(headers):
    """The compiler's status and what it said of the examples of the headers, name to text."""
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        for name, header in headers.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(header)
        (folder / "examples.cc").write_text(source(headers))
        done = subprocess.run([*COMPILER, "-std=c++20", "-fsyntax-only", f"-I{folder}", folder / "examples.cc"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout


@unittest.skipUnless(shutil.which(COMPILER[0]), f"there is no {COMPILER[0]}")
class Headers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.headers = {name: path.read_text() for path, name in reference.public_headers()}

    def test_each_header_has_an_example_and_is_short(self):
        for name, header in self.headers.items():
            with self.subTest(name):
                self.assertLessEqual(header.count("\n"), 150)
                self.assertTrue(list(examples(reference.documented(header))), "no example in a comment")

    def test_examples_compile(self):
        status, said = compiled(self.headers)
        self.assertEqual(status, 0, said)

    def test_a_wrong_example_is_found_at_its_line(self):
        broken = self.headers["shoal/text.h"].replace("text.blocks(),", "text.rows(),")
        status, said = compiled({**self.headers, "shoal/text.h": broken})
        self.assertNotEqual(status, 0)
        self.assertRegex(said, r"shoal/text\.h:4:\d+: error: .*rows")


if __name__ == "__main__":
    unittest.main()
