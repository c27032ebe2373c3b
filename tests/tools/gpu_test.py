"""The runner of the GPU bundle (tools/gpu) without a GPU: processes end with their time limit, later calls keep
results of earlier ones, and cases get the right verdicts.
"""

import json
import os
import stat
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "gpu"))
import bench
import run
import shows
import tests

# A GoogleTest program with one suite. Its second test has a child that keeps its pipes open and hangs.
PROGRAM = """#!/bin/sh
case "$*" in
  *list_tests*) printf 'Suite.\\n  Ends\\n  Hangs\\n'; exit 0 ;;
esac
case "$*" in
  *Ends*) printf '[ RUN      ] Suite.Ends\\n[       OK ] Suite.Ends (0 ms)\\n' ;;
esac
case "$*" in
  *Hangs*) printf '[ RUN      ] Suite.Hangs\\n'; sleep 300 & echo $! > "$PID_FILE"; wait ;;
esac
"""


class Pieces(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        os.makedirs(os.path.join(self.home.name, "bin"))
        self.pid_file = os.path.join(self.home.name, "pid")
        for name in ("one_test", "other_test"):
            path = os.path.join(self.home.name, "bin", name)
            with open(path, "w") as file:
                file.write(PROGRAM)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def tearDown(self):
        self.home.cleanup()

    def context(self, limit, jobs=2):
        return tests.Context(home=self.home.name, environment={**os.environ, "PID_FILE": self.pid_file},
                             out=self.home.name, limit=limit, jobs=jobs, filter="*", only="")

    def test_end_in_their_time_with_all_that_they_started(self):
        began = time.time()
        report = tests.run_programs(self.context(3), [tests.Program("one_test", each=True)], 100)
        self.assertLess(time.time() - began, 20)
        entry = report["one_test"]
        self.assertEqual((entry["passed"], entry["failed"]), (1, 1))
        self.assertEqual(entry["failures"][0]["test"], "Suite.Hangs")
        self.assertIn("took more than", entry["failures"][0]["message"])
        with open(self.pid_file) as file:
            child = int(file.read())
        for _ in range(100):
            try:  # killed, and perhaps not yet reaped by its new parent
                with open(f"/proc/{child}/stat") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except OSError:
                return
            time.sleep(0.1)
        self.fail("a process of the test is still running")

    def test_programs_that_need_the_whole_device_run_first(self):
        ran = []
        before = tests.run_batch
        try:
            tests.run_batch = lambda context, program, names, *_: (
                ran.append((program.name, "begins")), time.sleep(0.2), ran.append((program.name, "ends")),
                ({name: ("ok", "") for name in names}, 0.2, ""))[-1]
            tests.run_programs(self.context(30), [tests.Program("other_test"), tests.Program("one_test", alone=True)], 100)
        finally:
            tests.run_batch = before
        self.assertEqual(ran[:2], [("one_test", "begins"), ("one_test", "ends")])
        self.assertEqual(len(ran), 4)


    def test_a_program_that_does_not_start_has_failed(self):
        with open(os.path.join(self.home.name, "bin", "one_test"), "w") as file:
            file.write("#!/bin/sh\necho no such library >&2\nexit 127\n")
        context = self.context(3)
        report = tests.run_programs(context, [tests.Program("one_test")], 100)
        self.assertEqual((report["one_test"]["tests"], report["one_test"]["failed"]), (0, 1))
        self.assertEqual(report["one_test"]["failures"][0]["message"], "no such library")
        self.assertFalse(tests.result_of(context, report)["ok"])


# Runs its command and finds no error in it.
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ] || [ "${1#*/bin/}" = "$1" ]; do shift; done
"$@"
echo '========= ERROR SUMMARY: 0 errors'
"""
SANITIZED = """#!/bin/sh
case "$*" in
  *list_tests*) printf 'Suite.\n  Good\n  Bad\n'; exit 0 ;;
  *Good*) printf '[ RUN      ] Suite.Good\n[       OK ] Suite.Good (0 ms)\n' ;;
  *Bad*) printf '[ RUN      ] Suite.Bad\nx.cc:1: Failure\n[  FAILED  ] Suite.Bad (0 ms)\n'; exit 1 ;;
esac
"""


class Sanitized(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.path = os.environ["PATH"]
        os.environ["PATH"] = self.home.name + ":" + self.path
        self.program("compute-sanitizer", SANITIZER)
        os.makedirs(os.path.join(self.home.name, "bin"))

    def tearDown(self):
        os.environ["PATH"] = self.path
        self.home.cleanup()

    def program(self, name, text):
        path = os.path.join(self.home.name, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def result(self):
        return tests.sanitize(tests.Context(home=self.home.name, environment=dict(os.environ), out=self.home.name,
                                            limit=30, jobs=1, filter="*", only="memcheck"))

    def test_tests_fail_that_fail_without_an_error_of_the_sanitizers(self):
        self.program("bin/kernels_test", SANITIZED)
        result = self.result()
        entry = result["programs"]["memcheck"]
        self.assertEqual((entry["passed"], entry["failed"]), (1, 1))
        self.assertEqual(entry["failures"][0]["test"], "Suite.Bad")
        self.assertIn("x.cc:1", entry["failures"][0]["message"])
        self.assertFalse(result["ok"])

    def test_nothing_is_not_well(self):
        for text in ("#!/bin/sh\nexit 0\n", "#!/bin/sh\necho no such library >&2\nexit 127\n"):
            self.program("bin/kernels_test", text)
            self.assertFalse(self.result()["ok"])


class LaterCalls(unittest.TestCase):
    def test_find_a_whole_report_or_begin_anew(self):
        with tempfile.TemporaryDirectory() as out:
            path = os.path.join(out, "report.json")
            self.assertEqual(run.report_of(path), {"pieces": {}})
            kept = {"pieces": {"unit": {"ok": True}}}
            run.keep(kept, path)
            self.assertEqual(run.report_of(path), kept)
            self.assertEqual(os.listdir(out), ["report.json"])
            with open(path, "w") as file:
                file.write(json.dumps(kept)[:-3])
            self.assertEqual(run.report_of(path), {"pieces": {}})
            self.assertEqual(os.listdir(out), ["report.json.broken"])

    def test_keep_the_rows_that_they_do_not_measure(self):
        before = dict(rows=[dict(row="capture", part="capture", ms=1), dict(row="step-gpt2", part="step-gpt2", ms=2),
                            dict(row="step-gpt2-profile", part="step-gpt2", ms=3)],
                      parts=["capture", "step-gpt2"], left_out=["memory", "offload"])
        now = dict(ok=True, rows=[dict(row="step-gpt2", part="step-gpt2", ms=4), dict(row="memory", part="memory")],
                   parts=["step-gpt2", "memory"], left_out=[])
        both = bench.with_earlier(now, before)
        self.assertEqual([(r["row"], r.get("ms")) for r in both["rows"]],
                         [("capture", 1), ("step-gpt2", 4), ("memory", None)])
        self.assertEqual(both["parts"], ["capture", "step-gpt2", "memory"])
        self.assertEqual(both["left_out"], ["offload"])
        self.assertEqual(bench.with_earlier(now, {}), now)


def step(part, value, ratio, length=1024):
    return dict(row=part, part=part, summary=True, model="m", length=length, shoal=value, pytorch=value, ratio=ratio)


def programs(names, **counts):
    return {name: {**dict(passed=3, failed=0, skipped=1), **counts} for name in names}


class Cases(unittest.TestCase):
    def verdicts(self, report):
        shown = shows.cases(json.loads(json.dumps(report)))
        shows.print_cases(shown)
        return {case["case"]: case["verdict"] for case in shown}

    def test_without_pieces_no_case_is_measured(self):
        verdicts = self.verdicts({"pieces": {}})
        self.assertEqual(len(verdicts), 13)
        self.assertEqual(set(verdicts.values()), {"not measured"})

    def report(self):
        rows = [step("step-gpt2", 630e3, 1.3), step("step-gpt2-medium", 200e3, 1.3), step("step-gpt2-large", 80e3, 1.3),
                step("step-gpt2-xl", 56e3, 1.2), step("step-bert-128", 128 * 1700, 1.3, 128),
                step("step-bert-512", 512 * 430, None, 512),
                dict(row="capture", summary=True, batch=1, length=1024, ratio=1.4, same_loss=True),
                dict(row="capture", summary=True, batch=1, length=128, ratio=1.5, same_loss=True),
                dict(row="memory", summary=True, batch_ratio=2.0, shoal=50, pytorch=dict(pure=25),
                     tokens_per_second=2e5, pytorch_compile=1e5),
                dict(row="offload", summary=True, ratio=1.05, saved_bytes=100 << 20, formula_bytes=101 << 20, same_loss=True),
                dict(row="faults", case="out of memory", told=True), dict(row="faults", case="no device", told=True)]
        return {"pieces": {"bench": dict(rows=rows), "unit": dict(programs=programs((*shows.CORRECT["unit"], *shows.FAULTS["unit"]))),
                           "multirank": dict(programs=programs((*shows.CORRECT["multirank"], *shows.NCCL["multirank"],
                                                                *shows.MEMORY["multirank"])))}}

    def test_say_what_the_rows_say(self):
        self.assertEqual(self.verdicts(self.report()), {
            "correctness": "met", "GPT-2 124M, tokens/s": "met", "GPT-2 350M, tokens/s": "below the goal",
            "GPT-2 774M, tokens/s": "not met", "GPT-2 1.5B, tokens/s": "not met",
            "BERT-large s = 128, sequences/s": "met", "BERT-large s = 512, sequences/s": "in part",
            "step capture, batch 1": "met", "largest batch of GPT-2 124M under 40 GB, T = 512": "met",
            "activation offload of GPT-2 1.5B": "met", "NCCL, one rank": "met",
            "memory by tag equals the plan": "met", "faults are told in one line": "met"})

    def test_are_as_bad_as_their_worst(self):
        report = self.report()
        rows = report["pieces"]["bench"]["rows"]
        rows[6]["same_loss"] = False
        rows[8]["pytorch_compile"] = None
        rows[9]["saved_bytes"] = 50 << 20
        rows[11]["told"] = False
        report["pieces"]["unit"]["programs"]["nn_capture_test"]["failed"] = 1
        del report["pieces"]["multirank"]["programs"]["collectives_nccl_test"]
        del report["pieces"]["multirank"]["programs"]["parallel_apply_test"]
        verdicts = self.verdicts(report)
        self.assertEqual(verdicts["correctness"], "failed")
        self.assertEqual(verdicts["step capture, batch 1"], "not met")
        self.assertEqual(verdicts["largest batch of GPT-2 124M under 40 GB, T = 512"], "in part")
        self.assertEqual(verdicts["activation offload of GPT-2 1.5B"], "not met")
        self.assertEqual(verdicts["NCCL, one rank"], "not measured")
        self.assertEqual(verdicts["memory by tag equals the plan"], "not measured")
        self.assertEqual(verdicts["faults are told in one line"], "failed")

    def test_are_in_part_where_one_of_their_rows_is_missing(self):
        report = self.report()
        del report["pieces"]["bench"]["rows"][7]
        self.assertEqual(self.verdicts(report)["step capture, batch 1"], "in part")
        report["pieces"]["bench"]["rows"][6]["ratio"] = 1.1
        self.assertEqual(self.verdicts(report)["step capture, batch 1"], "not met")

    def test_cases_that_a_filter_cuts_are_in_part(self):
        report = self.report()
        report["pieces"]["unit"]["filter"] = "*Norm*"
        report["pieces"]["multirank"]["filter"] = "*"
        verdicts = self.verdicts(report)
        self.assertEqual(verdicts["correctness"], "in part")
        self.assertEqual(verdicts["faults are told in one line"], "in part")
        self.assertEqual(verdicts["memory by tag equals the plan"], "met")

    def test_cases_whose_tests_were_all_skipped_are_not_measured(self):
        report = self.report()
        report["pieces"]["multirank"]["programs"]["collectives_nccl_test"].update(passed=0, skipped=3)
        self.assertEqual(self.verdicts(report)["NCCL, one rank"], "not measured")

    def test_rest_on_what_bench_and_tests_run(self):
        self.assertEqual(set(shows.SPEEDS) - set(bench.NEEDS), set())
        self.assertLessEqual({"capture", "offload", "memory", "faults"}, set(bench.NEEDS))


if __name__ == "__main__":
    unittest.main()
