"""The cases of issue 5's table that a GPU must show, evaluated from a run's report. A case is `met`, `not met`,
`below the goal` (it has what is required), `failed` (a test that it needs), `in part` (a figure is missing) or `not
measured`.
"""

# Tokens or sequences per second: required, goal.
SPEEDS = {
    "step-gpt2": ("GPT-2 124M, tokens/s", 475e3, 620e3), "step-gpt2-medium": ("GPT-2 350M, tokens/s", 188e3, 225e3),
    "step-gpt2-large": ("GPT-2 774M, tokens/s", 90e3, 108e3), "step-gpt2-xl": ("GPT-2 1.5B, tokens/s", 47e3, 55e3),
    "step-bert-128": ("BERT-large s = 128, sequences/s", 1150, 1600),
    "step-bert-512": ("BERT-large s = 512, sequences/s", 420, 580),
}
BESIDE_PYTORCH = 1.25
CAPTURED = 1.3
BATCHES = 1.9
OFFLOADED, NEAR_THE_FORMULA = 1.1, 0.05

# The programs whose tests must pass for a case, by piece.
CORRECT = {"unit": ("kernels_test", "gpu_test", "gpu_train_test", "nn_autograd_test", "nn_layers_test",
                    "nn_models_test", "nn_optim_test", "nn_capture_test"),
           "multirank": ("gpu_multirank_test", "gpu_train_ranks_test", "parallel_device_test", "parallel_data_test",
                         "parallel_executor_test", "parallel_tensor_test", "parallel_shard_test", "parallel_activation_test")}
NCCL = {"multirank": ("collectives_nccl_test",)}
MEMORY = {"multirank": ("parallel_apply_test",)}
FAULTS = {"unit": ("gpu_test", "runtime_device_test")}


def tests_of(report, wanted):
    """(verdict or None, text) for the named programs."""
    passed = failed = skipped = 0
    missing, chosen = [], []
    for piece, names in wanted.items():
        programs = report["pieces"].get(piece, {}).get("programs", {})
        if (of := report["pieces"].get(piece, {}).get("filter", "*")) != "*":
            chosen.append(f"{piece} ran --filter {of} alone")
        for name in names:
            entry = programs.get(name)
            if not entry or entry["passed"] + entry["failed"] == 0:
                missing.append(name)
                continue
            passed, failed, skipped = passed + entry["passed"], failed + entry["failed"], skipped + entry["skipped"]
    words = "; ".join([f"{passed} tests passed, {failed} failed, {skipped} skipped", *chosen])
    if missing:
        words += f"; not run: {', '.join(missing)}"
    if failed:
        return "failed", words
    if not passed:
        return "not measured", words
    return ("in part" if missing or chosen else "met"), words


def summary(report, part, **fields):
    for row in reversed(report["pieces"].get("bench", {}).get("rows", [])):
        if row.get("row") == part and row.get("summary") and all(row.get(k) == v for k, v in fields.items()):
            return row
    return None


def speed(report, part):
    name, must, goal = SPEEDS[part]
    row = summary(report, part)
    case = dict(case=name, must=must, goal=goal)
    if not row or row.get("shoal") is None:
        return dict(**case, verdict="not measured", value=None, says="")
    value = row["shoal"] / (row["length"] if "sequences" in name else 1)
    ratio = row.get("ratio")
    says = f"{value:.0f}, " + (f"{ratio:.2f} x PyTorch's" if ratio else "PyTorch's has no figure")
    if value < must or (ratio and ratio < BESIDE_PYTORCH):
        verdict = "not met"
    else:
        verdict = "in part" if not ratio else "met" if value >= goal else "below the goal"
    return dict(**case, verdict=verdict, value=value, ratio=ratio, says=says)


def capture(report):
    case = dict(case="step capture, batch 1", must=CAPTURED)
    lengths = (1024, 128)
    rows = [r for r in (summary(report, "capture", batch=1, length=length) for length in lengths) if r]
    if not rows:
        return dict(**case, verdict="not measured", value=None, says="")
    says = "; ".join(f"T = {r['length']}: {r['ratio']:.2f} x" + ("" if r["same_loss"] else ", ANOTHER LOSS") for r in rows)
    good = all(r["ratio"] >= CAPTURED and r["same_loss"] for r in rows)
    verdict = "not met" if not good else "met" if len(rows) == len(lengths) else "in part"
    return dict(**case, verdict=verdict, value=min(r["ratio"] for r in rows), says=says)


def largest_batch(report):
    case = dict(case="largest batch of GPT-2 124M under 40 GB, T = 512", must=BATCHES)
    row = summary(report, "memory")
    if not row or not row.get("batch_ratio"):
        return dict(**case, verdict="not measured", value=None, says="")
    tokens, theirs = row.get("tokens_per_second"), row.get("pytorch_compile")
    says = f"{row['shoal']}, PyTorch eager {row['pytorch']}: {row['batch_ratio']:.2f} x; tokens/s there {tokens:.0f}, " + (
        f"PyTorch compile's {theirs:.0f}: {tokens / theirs:.2f} x" if theirs else "PyTorch compile's have no figure")
    verdict = "not met" if row["batch_ratio"] < BATCHES else "met" if theirs else "in part"
    return dict(**case, verdict=verdict, value=row["batch_ratio"], says=says)


def offload(report):
    case = dict(case="activation offload of GPT-2 1.5B", must=OFFLOADED)
    row = summary(report, "offload")
    if not row:
        return dict(**case, verdict="not measured", value=None, says="")
    apart = abs(row["saved_bytes"] - row["formula_bytes"]) / max(row["formula_bytes"], 1)
    says = (f"{row['ratio']:.3f} x the time; saves {row['saved_bytes'] / 2**20:.0f} MiB, the formula says "
            f"{row['formula_bytes'] / 2**20:.0f}" + ("" if row["same_loss"] else "; ANOTHER LOSS"))
    good = row["ratio"] <= OFFLOADED and apart <= NEAR_THE_FORMULA and row["same_loss"]
    return dict(**case, verdict="met" if good else "not met", value=row["ratio"], says=says)


def faults(report):
    verdict, says = tests_of(report, FAULTS)
    rows = [r for r in report["pieces"].get("bench", {}).get("rows", []) if r.get("row") == "faults" and "told" in r]
    if not rows:
        verdict = "in part" if verdict == "met" else verdict
        says += "; part faults of bench not run"
    elif not all(r["told"] for r in rows):
        verdict = "failed"
    for row in rows:
        says += f"; {row['case']}: {'told' if row['told'] else 'NOT told'}"
    return dict(case="faults are told in one line", verdict=verdict, says=says)


def cases(report):
    def by_tests(name, wanted):
        verdict, says = tests_of(report, wanted)
        return dict(case=name, verdict=verdict, says=says)

    return [by_tests("correctness", CORRECT), *(speed(report, part) for part in SPEEDS), capture(report),
            largest_batch(report), offload(report), by_tests("NCCL, one rank", NCCL),
            by_tests("memory by tag equals the plan", MEMORY), faults(report)]


def print_cases(shown):
    print(f"\n{'what a GPU is to show':50} {'must':>8} {'goal':>8}  verdict")
    for case in shown:
        def cell(key):
            return format(case[key], "g") if case.get(key) is not None else ""
        print(f"{case['case']:50} {cell('must'):>8} {cell('goal'):>8}  {case['verdict']}"
              + (f": {case['says']}" if case["says"] else ""))
