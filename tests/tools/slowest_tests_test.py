"""tools/slowest_tests.py lists the longest tests first, and none that did not run."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools" / "slowest_tests.py"
JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="4">
  <testcase name="a.Short" classname="a.Short" time="0.25" status="run"/>
  <testcase name="b.Long" classname="b.Long" time="12.5" status="fail"/>
  <testcase name="c.Skipped" classname="c.Skipped" time="99" status="notrun"/>
  <testcase name="d.Middle" classname="d.Middle" time="3" status="run"/>
</testsuite>
"""


class SlowestTests(unittest.TestCase):
    def test_longest_first(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "times.xml"
            path.write_text(JUNIT, encoding="utf-8")
            done = subprocess.run([sys.executable, PROGRAM, path, "2"], check=True, capture_output=True, text=True)
        lines = [line.split() for line in done.stdout.splitlines()[1:]]
        self.assertEqual(lines, [["12.50", "b.Long"], ["3.00", "d.Middle"]])


if __name__ == "__main__":
    unittest.main()
