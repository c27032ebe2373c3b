"""The pieces of the GPU bundle that test. GoogleTest programs run in their own processes, one for each batch of
tests, because an illegal access breaks the rest of its process.
"""

import concurrent.futures
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import time

# Errors after which no later test of the process can pass.
STICKY = re.compile(r"illegal memory access|misaligned address|unspecified launch failure|"
                    r"illegal instruction|invalid program counter|device-side assert|"
                    r"launch timed out")


@dataclasses.dataclass
class Context:
    home: str
    environment: dict
    out: str
    limit: float
    jobs: int
    filter: str
    only: str


@dataclasses.dataclass
class Program:
    name: str
    environment: dict = dataclasses.field(default_factory=dict)
    filter: str = "*"
    each: bool = False  # a process for each test, not for each suite
    alone: bool = False  # before all others, because it measures the free device memory


def listed_names(text):
    names, suite = [], ""
    for line in text.split("\n"):
        line = line.split("#")[0].rstrip()
        if not line or line.startswith("Running main"):
            continue
        if not line.startswith(" "):
            suite = line if line.endswith(".") else ""
        elif suite:
            names.append(suite + line.strip())
    return names


def list_tests(program, environment, chosen="*"):
    try:
        done = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={chosen}"],
                              env=environment, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [], str(problem)
    return listed_names(done.stdout), done.stderr.strip()[:300] if done.returncode else ""


def end(process):
    """Ends the process and its children (ranks, children of compute-sanitizer), which hold its pipes open."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def run_batch(context, program, tests, seconds, prefix=()):
    """Runs `tests` in one process. Returns {test: (result, message)}, its seconds and its whole output."""
    path = os.path.join(context.home, "bin", program.name)
    command = [*prefix, path, f"--gtest_filter={':'.join(tests)}"]
    began, ended = time.time(), "ended"
    process = subprocess.Popen(command, env={**context.environment, **program.environment},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", cwd=context.out, start_new_session=True)  # for end()
    try:
        text, _ = process.communicate(timeout=seconds)
        if process.returncode < 0:
            ended = f"killed by signal {-process.returncode}"
        elif process.returncode not in (0, 1):
            ended = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        end(process)
        text, _ = process.communicate()
        ended = f"took more than {seconds:.0f} s"
    results = {}
    for outcome, name in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,| \(|$)", text, re.M):
        results[name] = (outcome.lower(), "")
    started = re.findall(r"^\[ RUN      \] (\S+)", text, re.M)
    for name in started:
        body = text.split(f"[ RUN      ] {name}\n", 1)[-1].split("\n[ ", 1)[0]
        if name not in results:
            results[name] = ("failed", f"{ended}: {last_lines(body)}")
        elif results[name][0] == "failed":
            results[name] = ("failed", first_failure(body))
    for name in tests:
        results.setdefault(name, ("failed", f"not reached: the process {ended}: {last_lines(text)}"))
    return results, time.time() - began, text


def last_lines(text):
    return " | ".join(line.strip() for line in text.strip().split("\n")[-3:])[:300]


def first_failure(text):
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    at = next((i for i, line in enumerate(lines) if "Failure" in line or "exception" in line), 0)
    return " | ".join(lines[at:at + 6])[:500]


def batches_of(program, names):
    if program.each:
        return [[name] for name in names]
    suites = {}
    for name in names:
        suites.setdefault(name.rsplit(".", 1)[0], []).append(name)
    return list(suites.values())


def run_programs(context, programs, limit):
    deadline = time.time() + (context.limit or limit)
    programs = [p for p in programs if re.search(context.only or "", p.name)
                and os.path.exists(os.path.join(context.home, "bin", p.name))]
    work, report = [], {}
    for program in programs:
        names, problem = list_tests(os.path.join(context.home, "bin", program.name),
                                    {**context.environment, **program.environment},
                                    program.filter if context.filter == "*" else context.filter)
        report[program.name] = dict(tests=len(names), passed=0, failed=0, skipped=0, seconds=0.0,
                                    failures=[], skips=[])
        if problem:
            report[program.name]["failed"] += 1
            report[program.name]["failures"].append(dict(test="(listing)", message=problem))
        work += [(program, batch) for batch in batches_of(program, names)]

    def one(item):
        program, batch = item
        if time.time() + 1 > deadline:
            return program, {name: ("failed", "left out for want of time (--limit)") for name in batch}, 0, ""
        results, seconds, text = run_batch(context, program, batch, max(1, deadline - time.time()))
        if len(batch) > 1 and (STICKY.search(text) or "the process" in str(results)):
            # A test may have broken the process for the others, so each failed one runs again separately.
            for name in [n for n, r in results.items() if r[0] == "failed"]:
                if time.time() + 2 > deadline:
                    break
                again, more, extra = run_batch(context, program, [name], max(1, deadline - time.time()))
                results[name], seconds, text = again[name], seconds + more, text + extra
        return program, results, seconds, text

    def in_order(pool):
        yield from map(one, [item for item in work if item[0].alone])
        yield from pool.map(one, [item for item in work if not item[0].alone])

    with concurrent.futures.ThreadPoolExecutor(context.jobs) as pool:
        for program, results, seconds, text in in_order(pool):
            entry = report[program.name]
            entry["seconds"] = round(entry["seconds"] + seconds, 1)
            for name, (outcome, message) in results.items():
                if outcome == "failed":
                    entry["failed"] += 1
                    entry["failures"].append(dict(test=name, message=message))
                elif outcome == "skipped":
                    entry["skipped"] += 1
                    entry["skips"].append(name)
                else:
                    entry["passed"] += 1
            with open(os.path.join(context.out, f"{program.name}.log"), "a") as log:
                log.write(text)
    return report


def print_table(title, report, messages=40):
    print(f"\n{title:32} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for name, entry in report.items():
        print(f"{name:32} {entry['passed']:7} {entry['failed']:7} {entry['skipped']:8} {entry['seconds']:8}")
    failures = [(n, f) for n, e in report.items() for f in e["failures"]]
    for name, failure in failures[:messages]:
        print(f"  FAILED {name} {failure['test']}: {failure['message'][:240]}")
    if len(failures) > messages:
        print(f"  and {len(failures) - messages} more (report.json)")


ON_DEVICE = {"SHOAL_TEST_DEVICE": "cuda", "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"}
# These tests read results in place, in pinned memory, so no kernel may still be running.
IN_PLACE = {**ON_DEVICE, "CUDA_LAUNCH_BLOCKING": "1"}


def with_sources(context, environment):
    return {**environment, "SHOAL_TEST_SOURCE_DIR": context.home}


def result_of(context, report):
    return dict(ok=not any(e["failed"] for e in report.values()), filter=context.filter, programs=report)


def unit(context):
    programs = [Program("kernels_test", ON_DEVICE, each=True), Program("gpu_test", ON_DEVICE),
                Program("gpu_train_test", ON_DEVICE),
                Program("nn_autograd_test", IN_PLACE), Program("nn_layers_test", IN_PLACE),
                Program("nn_models_test", IN_PLACE), Program("nn_optim_test", IN_PLACE),
                Program("nn_capture_test"),
                Program("runtime_device_test", ON_DEVICE, alone=True), Program("runtime_memory_test", ON_DEVICE)]
    for program in programs:
        program.environment = with_sources(context, program.environment)
    report = run_programs(context, programs, 100)
    print_table("unit", report)
    return result_of(context, report)


def multirank(context):
    programs = [Program("gpu_multirank_test", ON_DEVICE, each=True), Program("gpu_train_ranks_test", ON_DEVICE),
                Program("collectives_device_test"),
                Program("collectives_nccl_test"),
                *(Program(f"parallel_{part}_test", ON_DEVICE)
                  for part in ("device", "data", "executor", "tensor", "shard")),
                Program("parallel_activation_test", IN_PLACE),
                # Compares the bytes by tag with the plan.
                Program("parallel_apply_test", ON_DEVICE, filter="*Exactly*")]
    for program in programs:
        program.environment = with_sources(context, program.environment)
    report = run_programs(context, programs, 140)
    print_table("multirank", report)
    return result_of(context, report)


def find_sanitizer():
    found = shutil.which("compute-sanitizer")
    for place in ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"):
        if not found and os.path.exists(os.path.join(place, "compute-sanitizer")):
            found = os.path.join(place, "compute-sanitizer")
    return found


TOOLS = {"memcheck": ["--padding", "64"], "racecheck": [], "synccheck": [], "initcheck": []}


def sanitize(context):
    sanitizer = find_sanitizer()
    if not sanitizer:
        print("sanitize: there is no compute-sanitizer on this machine")
        return dict(ok=False, error="no compute-sanitizer")
    program = Program("kernels_test", with_sources(context, {**ON_DEVICE, "SHOAL_TEST_SANITIZE": "1"}))
    names, problem = list_tests(os.path.join(context.home, "bin", program.name),
                                {**context.environment, **program.environment},
                                context.filter if context.filter != "*" else "-*Philox.*:*CacheIsBounded:Cuda*:Gemm*:Attention*OtherInstructionSetsAgree:*Errors*")
    if problem or not names:
        problem = problem or f"{program.name} has no test of the name {context.filter}"
        print(f"sanitize: {problem}")
        return dict(ok=False, error=problem)
    tools = [t for t in TOOLS if re.search(context.only or "", t)]
    deadline = time.time() + (context.limit or 100 * len(tools))
    report = {}

    def one(item):
        tool, batch = item
        if time.time() + 3 > deadline:
            return tool, batch, {}, 0, ""
        prefix = [sanitizer, "--tool", tool, *TOOLS[tool], "--error-exitcode", "99", "--print-limit", "5"]
        results, seconds, text = run_batch(context, program, batch, max(1, deadline - time.time()),
                                           prefix)
        return tool, batch, results, seconds, text

    # Taken in turn, so that each tool gets its share of the time.
    work = [(tool, [name]) for name in names for tool in tools]
    with concurrent.futures.ThreadPoolExecutor(context.jobs) as pool:
        for tool, batch, results, seconds, text in pool.map(one, work):
            entry = report.setdefault(tool, dict(tests=0, passed=0, failed=0, skipped=0, seconds=0.0,
                                                 failures=[]))
            entry["tests"] += 1
            if not results:
                entry["skipped"] += 1
                entry.setdefault("left_out", []).append(batch[0])
                continue
            entry["seconds"] = round(entry["seconds"] + seconds, 1)
            errors = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
            found = sum(int(a or b) for a, b in errors)
            kinds = re.findall(r"=========\s+(Invalid|Uninitialized|Barrier error|Error: Race|Warning: Race|"
                               r"Program hit|Potential|Divergent)([^\n]*)\n=========\s+(at|by|Write|Read)?([^\n]*)", text)
            if found or not errors:
                first = " ".join(kinds[0]) if kinds else last_lines(text)
                entry["failed"] += 1
                entry["failures"].append(dict(test=batch[0], message=f"{found} errors: {first}"[:500]))
            elif results[batch[0]][0] == "failed":
                entry["failed"] += 1
                entry["failures"].append(dict(test=batch[0], message=results[batch[0]][1]))
            elif results[batch[0]][0] == "skipped":
                entry["skipped"] += 1
            else:
                entry["passed"] += 1
            in_full = found or not errors or results[batch[0]][0] == "failed"
            with open(os.path.join(context.out, f"sanitize.{tool}.log"), "a") as log:
                log.write(text if in_full else "\n".join(text.split("\n")[-3:]))
    print_table("sanitize", report)
    for tool, entry in report.items():
        if entry.get("left_out"):
            print(f"{tool}: {len(entry['left_out'])} tests left out for want of time (--limit)")
    return dict(ok=not any(e["failed"] or e.get("left_out") for e in report.values()), programs=report)
