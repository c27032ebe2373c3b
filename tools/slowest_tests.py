#!/usr/bin/env python3
"""slowest_tests.py JUNIT.xml [N]: the N slowest tests of ctest's --output-junit, in seconds. `./dev test --slowest`
calls it.
"""
import sys
import xml.etree.ElementTree


def slowest(path: str, count: int) -> list[tuple[float, str]]:
    """(seconds, name), the longest first; tests that did not run are left out."""
    cases = xml.etree.ElementTree.parse(path).getroot().iter("testcase")
    times = [(float(case.get("time", 0)), case.get("name", "?")) for case in cases if case.get("status") in ("run", "fail")]
    return sorted(times, key=lambda each: (-each[0], each[1]))[:count]


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    found = slowest(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 20)
    print(f"the {len(found)} tests that took longest, seconds:")
    for seconds, name in found:
        print(f"{seconds:9.2f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
