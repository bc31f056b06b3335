"""Adds up the test reports of a run and prints one line: "N passed, N failed".

    tally.py REPORT_DIR...

A report directory holds the JUnit files of ctest and pytest, and in gtest/ those of the GoogleTest programs, whose cases
count one by one in the place of the program's own line. Exit status 1 when a test failed, or none ran.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count(report: Path) -> dict[str, bool]:
    """Test name -> whether it passed, of one JUnit file."""
    results = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        bad = bad or case.get("status") in ("fail", "notrun", "skipped", "disabled")
        results[f"{case.get('classname')}.{case.get('name')}"] = not bad
    return results


def count_directory(directory: Path) -> tuple[int, int]:
    passed = failed = 0
    programs = {report.stem: count(report) for report in directory.glob("gtest/*.xml")}
    for report in directory.glob("*.xml"):
        for name, ok in count(report).items():
            cases = programs.get(name.rpartition(".")[2])
            if cases and ok == all(cases.values()):
                passed += sum(cases.values())
                failed += len(cases) - sum(cases.values())
            else:  # no GoogleTest program, or one that crashed
                passed += ok
                failed += not ok
    return passed, failed


def main() -> int:
    totals = [count_directory(Path(argument)) for argument in sys.argv[1:]]
    passed, failed = (sum(column) for column in zip(*totals, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
