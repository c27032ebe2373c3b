"""The wheel that ./dev python builds for this Python's PyTorch, in fresh virtual environments.

SHOAL_TEST_PYTORCH names a directory of packages with PyTorch, which the environment then sees; without it, pip
fetches PyTorch.
"""
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 40_000_000
PROGRAMS = ("shoal", "shoal-collective-perf", "shoal-collective-tune")
# Present on every Linux, or installed with PyTorch.
ELSEWHERE = re.compile(r"^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+|torch.*|c10.*|shm)"
                       r"\.so.*)")


def build_wheel():
    subprocess.check_call([ROOT / "dev", "python"], env={**os.environ, "SHOAL_PYTHON": sys.executable})
    return max((ROOT / "build" / "wheels").glob("shoal-*.whl"), key=os.path.getmtime)


def ten_lines():
    """The script at the beginning of docs/start/pytorch.md."""
    lines = (ROOT / "docs" / "start" / "pytorch.md").read_text().splitlines()[1:]
    return [line[4:] for line in lines[:lines.index("")]]


def run_clean(*command):
    """Status and output of a command that does not see this environment's packages."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(command, env=environment, cwd=directory, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120)
    return done.returncode, done.stdout


class Environment:
    """A virtual environment with the wheel."""

    def __init__(self, home, wheel, *, pytorch):
        self.python = home / "bin" / "python"
        self.programs = home / "bin"
        venv.create(home, with_pip=False)
        status, said = run_clean(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        assert status == 0, said
        self.packages = pathlib.Path(said.strip())
        self.pip("--no-index", "--no-deps", wheel)
        given = os.environ.get("SHOAL_TEST_PYTORCH")
        if pytorch and given:
            (self.packages / "pytorch.pth").write_text(f"{given}\n")
        elif pytorch:
            version = re.search(r"\+torch([\d.]+)", wheel.name)[1]
            self.pip(f"torch=={version}.*", "numpy")

    def pip(self, *words):
        subprocess.check_call([sys.executable, "-m", "pip", "--quiet", "--python", self.python, "install", *words])

    def run(self, *words):
        return run_clean(self.python, "-B", *words)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if importlib.util.find_spec("scikit_build_core") is None:
            print(f"{sys.executable} lacks scikit-build-core, which builds the wheel")
            sys.exit(77)
        cls.wheel = build_wheel()
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.beside = Environment(cls.scratch / "beside", cls.wheel, pytorch=True)
        cls.alone = Environment(cls.scratch / "alone", cls.wheel, pytorch=False)

    def torchrun(self, lines):
        path = self.scratch / "ddp.py"
        path.write_text("\n".join(lines))
        status, said = self.beside.run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", path)
        self.assertEqual(status, 0, said)

    def test_size(self):
        self.assertLess(self.wheel.stat().st_size, MOST_BYTES)

    def test_name_tells_pytorch(self):
        status, said = self.beside.run("-c", "import torch; print(torch.__version__)")
        self.assertEqual(status, 0, said)
        self.assertIn(f"+torch{'.'.join(said.split('.')[:2])}-", self.wheel.name)

    def test_typed(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("shoal/py.typed", "shoal/_torch.pyi", "shoal/_native.pyi"):
            self.assertIn(name, names)

    def test_ten_lines(self):
        lines = ten_lines()
        self.assertLessEqual(len(lines), 12)
        self.assertIn("import shoal.torch", lines)
        self.torchrun(lines)

    def test_ten_lines_without_import(self):
        status, said = self.beside.run("-c", "import torch; print(torch.__version__)")
        self.assertEqual(status, 0, said)
        if tuple(map(int, said.split(".")[:2])) < (2, 14):
            self.skipTest("PyTorch looks for backends since 2.14")
        lines = [line for line in ten_lines() if line != "import shoal.torch"]
        for name in ("shoal", "smddp"):
            self.torchrun([line.replace('"shoal"', f'"{name}"') for line in lines])

    def test_without_pytorch(self):
        status, said = self.alone.run("-c", "import shoal; shoal.train; shoal.generate; print(shoal.__version__)")
        self.assertEqual((status, said.strip()), (0, self.wheel.name.split("-")[1]), said)
        status, said = self.alone.run("-c", "import shoal.torch")
        self.assertNotEqual(status, 0)
        self.assertIn("No module named 'torch'", said.splitlines()[-1])

    def test_native(self):
        for environment in (self.alone, self.beside):
            status, said = environment.run("-c", "import shoal; shoal.train({'max_stepz': 1})")
            self.assertNotEqual(status, 0)
            self.assertIn("ValueError: shoal.train: ", said)
            self.assertIn("max_stepz", said)

    def test_programs(self):
        for name in PROGRAMS:
            status, said = run_clean(self.alone.programs / name, "--help")
            self.assertEqual(status, 0, said)
        status, said = run_clean(self.alone.programs / "shoal", "doctor")
        self.assertEqual(status, 0, said)

    def test_tokenizes(self):
        """This tokenizer normalizes by NFKD, which needs the part of ICU's data in the wheel."""
        golden = ROOT / "tests" / "golden" / "tokenizer"
        cases = json.loads((golden / "sentence_piece" / "albert.cases.json").read_text())["single"]
        texts = json.loads((golden / "texts.json").read_text())
        wanted = [(text, case["ids"][1:-1]) for text, case in zip(texts, cases)  # without [CLS] and [SEP]
                  if not text.isascii() and len(text.splitlines()) == 1 and len(text) < 200][:8]
        self.assertEqual(len(wanted), 8)
        for text, ids in wanted:
            status, said = run_clean(self.alone.programs / "shoal", "tokenizer", "encode", "-t",
                                     golden / "sentence_piece" / "albert.json", text)
            self.assertEqual((status, said.split()), (0, [str(token) for token in ids]), text)

    def test_libraries_are_inside(self):
        package = self.beside.packages / "shoal"
        modules = list(package.glob("_*.so"))
        self.assertEqual(len(modules), 2)
        for binary in [*package.glob("bin/*"), *modules]:
            status, said = run_clean("ldd", binary)
            self.assertEqual(status, 0, said)
            for line in said.splitlines():
                name, _, rest = line.strip().partition(" => ")
                if ELSEWHERE.match(pathlib.Path(name.split()[0]).name):
                    continue
                self.assertTrue(os.path.realpath(rest.split()[0]).startswith(os.path.realpath(package / "lib")),
                                f"{binary.name} needs {line.strip()}")
                if binary in modules:  # Python's ssl may need another one
                    self.assertNotIn("libcrypto", name, binary.name)

    def test_glibc(self):
        """The one that docs/start/install.md names."""
        if platform.libc_ver()[1] != "2.36":
            self.skipTest("that page names the glibc that a wheel from Debian 12 needs")
        package = self.alone.packages / "shoal"
        _, said = run_clean("objdump", "-T", *package.glob("_*.so"), *package.glob("bin/*"), *package.glob("lib/*"))
        self.assertEqual(max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", said)), 34)

    def test_other_pytorch_is_named(self):
        built_for = self.beside.packages / "shoal" / "_built_for.py"
        kept = built_for.read_text()
        try:
            for value, words in (('"2.7.1"', "was built for PyTorch 2.7.1, but this is"), ("None", "has no backend")):
                built_for.write_text(f"TORCH = {value}\n")
                status, said = self.beside.run("-c", "import shoal.torch")
                self.assertNotEqual(status, 0)
                self.assertIn(words, said.splitlines()[-1])
        finally:
            built_for.write_text(kept)


if __name__ == "__main__":
    unittest.main()
