"""The piece of the GPU bundle that measures: Shoal's programs and PyTorch, by turns (Shoal, PyTorch, Shoal, PyTorch)
on the same GPU in the same call. Figures are medians. Parts are named kernels, step-MODEL, step-bert-LENGTH,
step-llama, capture, offload, memory, faults. --only selects some of them; the report keeps the rows of the others
from earlier calls.
"""

import json
import os
import re
import select
import subprocess
import sys
import time

from tests import end

# Sequences per step for both sides, with T = 1024: more would hardly be faster, and Shoal's run fits beside the memory
# that PyTorch keeps between its rounds. The second number is for a GPU of more than 100 GB.
BATCHES = {"gpt2": (32, 64), "gpt2-medium": (16, 32), "gpt2-large": (8, 16), "gpt2-xl": (8, 16)}
COMPILE = {"gpt2": "whole", "gpt2-medium": "whole", "gpt2-large": "blocks", "gpt2-xl": "blocks"}
# Models other than GPT-2, with the options of both sides; batches as above. BERT as in its pretraining.
OTHER_MODELS = {
    "step-bert-128": (dict(model="bert-large", length=128, dropout=0.1), (128, 256)),
    "step-bert-512": (dict(model="bert-large", length=512, dropout=0.1), (32, 64)),
    "step-llama": (dict(model="llama-1b", length=2048), (4, 8)),
}
# Approximate seconds for each. A row that no longer fits is left out, with a message.
NEEDS = {"kernels": 20, "step-gpt2": 75, "step-gpt2-medium": 90, "step-gpt2-large": 70, "step-gpt2-xl": 80,
         "step-bert-128": 60, "step-bert-512": 60, "step-llama": 70, "capture": 30,
         "offload": 90, "memory": 130, "faults": 25}


class Bench:
    def __init__(self, context):
        self.context = context
        self.deadline = time.time() + (context.limit or 480)
        self.rows = []
        self.part = None  # the key of NEEDS that runs
        self.large = device_megabytes() > 100_000
        self.program = os.path.join(context.home, "bin", "gpt2_gpu_step")
        self.cache = os.path.join(context.home, "algorithms")  # kept between calls
        os.makedirs(self.cache, exist_ok=True)
        # PyTorch runs in its own environment with its own libraries.
        self.peer_environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.peer_environment.pop("LD_LIBRARY_PATH", None)
        if "LD_LIBRARY_PATH" in os.environ:
            self.peer_environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]

    def left(self):
        return max(1.0, self.deadline - time.time())

    def add(self, **row):
        row["part"] = self.part
        self.rows.append(row)
        with open(os.path.join(self.context.out, "rows.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def log(self, name, text):
        with open(os.path.join(self.context.out, f"bench.{name}.log"), "a") as file:
            file.write(text)

    def ours(self, row, seconds=100, quiet=False, environment=None, **options):
        """Runs gpt2_gpu_step once and returns its report, or None."""
        path = os.path.join(self.context.out, "step.json")
        if os.path.exists(path):
            os.remove(path)
        command = [self.program, "--json", path, "--algorithm-cache", self.cache]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        try:
            done = subprocess.run(command, env={**self.context.environment, **(environment or {})},
                                  capture_output=True, text=True, timeout=min(seconds, self.left()))
            text, problem = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            text, problem = f"{late.stdout or ''}{late.stderr or ''}", f"took more than {late.timeout:.0f} s"
        self.log(row, " ".join(command) + "\n" + text + "\n")
        if problem and os.path.exists(path):
            # The program measured and wrote its report before it crashed. Keep the figures and report the fault.
            print(f"{row}: gpt2_gpu_step wrote its report, then ended with {problem}")
        elif problem:
            line = next((l for l in reversed(text.strip().split("\n")) if l.strip()), "")
            if not quiet:
                self.add(row=row, peer="shoal", error=f"{problem}: {line}"[:400], options=options)
                print(f"{row}: gpt2_gpu_step: {problem}: {line}"[:400])
            return None
        with open(path) as file:
            report = json.load(file)
        if problem:
            report["error"] = f"ended with {problem} after the report"
        if not quiet:
            self.add(row=row, peer="shoal", **report)
        return report

    def peer_command(self, **options):
        command = [sys.executable if has_torch(sys.executable) else "python3",
                   os.path.join(self.context.home, "bench", "gpu", "pytorch_gpt2.py")]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        return command


def device_megabytes():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True)
    return int(out.stdout.split()[0]) if out.returncode == 0 else 0


def has_torch(python):
    return subprocess.run([python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"],
                          capture_output=True).returncode == 0


class Peer:
    """pytorch_gpt2.py --serve: one answer for each round."""

    def __init__(self, bench, row, **options):
        self.bench, self.row = bench, row
        self.log = open(os.path.join(bench.context.out, f"bench.{row}.pytorch.log"), "a")
        self.process = subprocess.Popen(bench.peer_command(serve=True, **options), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=bench.peer_environment, start_new_session=True)
        self.facts = self.read(180)

    def read(self, seconds):
        until = time.time() + min(seconds, self.bench.left())
        while time.time() < until:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                line = self.process.stdout.readline()
                if line:
                    return json.loads(line)
            if self.process.poll() is not None:
                break
        return None

    def round(self, seconds=60):
        if self.facts is None or self.process.poll() is not None:
            return None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        answer = self.read(seconds)
        if answer:
            self.bench.add(row=self.row, **answer)
        return answer

    def close(self):
        if self.facts is None:
            self.bench.add(row=self.row, peer="pytorch", error="did not start (log)")
            print(f"{self.row}: pytorch_gpt2.py did not start; see bench.{self.row}.pytorch.log")
        end(self.process)  # including the compiler's workers
        self.process.wait()
        self.log.close()


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def gpt2_steps(bench, model):
    row, batch = f"step-{model}", BATCHES[model][bench.large]
    options = dict(model=model, batch=batch, length=1024, steps=10)
    steps(bench, row, COMPILE[model], options)
    if model == "gpt2":
        bench.ours(row + "-profile", warmup=3, profile=True, **options)
        other = Peer(bench, row, compile="whole", warmup=3, precision="autocast", **options)
        theirs_autocast = other.round()
        other.close()
        if theirs_autocast:
            bench.add(row=row + "-autocast", tokens_per_second=theirs_autocast["tokens_per_second"])


def other_steps(bench, row):
    options, batches = OTHER_MODELS[row]
    options = dict(**options, batch=batches[bench.large], steps=10)
    steps(bench, row, "blocks", options)
    bench.ours(row + "-profile", warmup=3, profile=True, **options)


def steps(bench, row, compile, options):
    """Shoal, PyTorch, Shoal, PyTorch."""
    # The first run also times the products' algorithms and saves the choices.
    ours = [bench.ours(row, warmup=5, capture="on", **options)]
    peer = Peer(bench, row, compile=compile, warmup=3, **options)
    theirs = [peer.round()]
    ours.append(bench.ours(row, warmup=5, capture="on", **options))
    theirs.append(peer.round())
    peer.close()
    a = [r["tokens_per_second"] for r in ours if r]
    b = [r["tokens_per_second"] for r in theirs if r]
    return bench.add(row=row, summary=True, model=options["model"], batch=options["batch"], length=options["length"],
                     shoal=median(a) if a else None, pytorch=median(b) if b else None,
                     ratio=median(a) / median(b) if a and b else None,
                     compile_seconds=peer.facts.get("start_seconds") if peer.facts else None,
                     attention=peer.facts.get("attention") if peer.facts else None,
                     tflops=ours[-1].get("tflops") if ours[-1] else None)


def kernels(bench):
    program = os.path.join(bench.context.home, "bin", "shoal_bench_gpu")
    try:
        done = subprocess.run([program, "--cache", bench.cache], env=bench.context.environment, capture_output=True, text=True,
                              timeout=min(90, bench.left()))
        text = done.stdout
        bench.log("kernels", done.stdout + done.stderr)
        if done.returncode:
            print(f"kernels: {done.stderr.strip()[:300]}")
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        print("kernels: took too long")
    for line in text.split("\n"):
        if line.startswith("{"):
            row = bench.add(row="kernels", **json.loads(line))
            if "error" in row:
                print(f"  {row['operation']:28} {row['error'][:160]}")
                continue
            print(f"  {row['operation']:28} {row['shape']:28} {row['us']:10.1f} us {row['gb_per_s']:6.0f} GB/s "
                  f"({row['bandwidth_fraction']:.2f}) {row['tflops']:6.1f} TFLOP/s ({row['matmul_fraction']:.2f})")


def capture(bench):
    """Call by call, captured with weight gradients concurrent to backward, and captured without."""
    for batch, length in ((1, 1024), (1, 128)):
        options = dict(model="gpt2", batch=batch, length=length, steps=30, warmup=8)
        off = bench.ours("capture", capture="off", **options)
        on = bench.ours("capture", capture="on", environment={"SHOAL_CAPTURE_BRANCHES": "on"}, **options)
        straight = bench.ours("capture", capture="on", environment={"SHOAL_CAPTURE_BRANCHES": "off"}, **options)
        if on and off and straight:
            row = bench.add(row="capture", summary=True, batch=batch, length=length, off_ms=off["step_ms"],
                            on_ms=on["step_ms"], straight_ms=straight["step_ms"],
                            ratio=off["step_ms"] / on["step_ms"],
                            same_loss=on["loss"] == off["loss"] == straight["loss"])
            print(f"  capture {batch} x {length}: {row['off_ms']:.3f} -> {row['on_ms']:.3f} ms, "
                  f"{row['ratio']:.2f} x ({row['straight_ms']:.3f} without branches); "
                  f"the same loss: {row['same_loss']}")


def offload(bench, model="gpt2-xl", length=1024):
    """Checkpointed blocks with their inputs on the GPU and in pinned host memory, by turns."""
    batch = BATCHES[model][bench.large]
    options = dict(model=model, batch=batch, length=length, steps=6, warmup=5, capture="on",
                   checkpoint_layers=True)
    kept = [bench.ours("offload", predict=True, **options)]
    left = [bench.ours("offload", predict=True, offload=True, **options)]
    kept.append(bench.ours("offload", **options))
    left.append(bench.ours("offload", offload=True, **options))
    if not (kept[0] and left[0]):
        return
    # If a second round fails, it gets a row of its own.
    kept, left = [r for r in kept if r], [r for r in left if r]
    before, after = (median([r["step_ms"] for r in rows]) for rows in (kept, left))
    peaks = [r["memory"]["activations"]["peak"] for r in (kept[0], left[0])]
    formula = [r["predicted_activations"] for r in (kept[0], left[0])]
    row = bench.add(row="offload", summary=True, batch=batch, length=length, kept_ms=before, offloaded_ms=after,
                    ratio=after / before, saved_bytes=peaks[0] - peaks[1], formula_bytes=formula[0] - formula[1],
                    held_bytes=left[0]["offload"]["held_bytes"], same_loss=kept[0]["loss"] == left[0]["loss"])
    print(f"  offload {model} {batch} x {length}: {before:.1f} -> {after:.1f} ms, {row['ratio']:.3f} x; "
          f"saves {row['saved_bytes'] / 2**20:.0f} MiB, the formula says {row['formula_bytes'] / 2**20:.0f}; "
          f"{row['held_bytes'] / 2**20:.0f} MiB pinned; the same loss: {row['same_loss']}")


def memory(bench, cap=40, length=512):
    """The largest batch of GPT-2 124M under `cap` GB for Shoal and for eager PyTorch. Also tokens per second at that
    batch, compared with torch.compile, which may use the whole GPU."""
    found = {}
    for precision in ("autocast", "pure"):
        try:
            done = subprocess.run(bench.peer_command(model="gpt2", length=length, compile="off", precision=precision,
                                                     memory_cap=cap, find_batch=True),
                                  env=bench.peer_environment, capture_output=True, text=True,
                                  timeout=min(120, bench.left()))
        except subprocess.TimeoutExpired:
            print("  memory: PyTorch's search took too long")
            continue
        bench.log("memory", done.stderr)
        if done.returncode == 0:
            found[precision] = bench.add(row="memory", **json.loads(done.stdout.strip().split("\n")[-1]))["batch"]
    # Memory grows by the same number of bytes for each sequence, so two runs determine the cap.
    options = dict(model="gpt2", length=length, steps=3, warmup=4, memory_cap=cap, capture="on")
    sizes = {}
    for batch in (16, 48):
        report = bench.ours("memory", batch=batch, **options)
        if report:
            sizes[batch] = report["memory"]["held_peak"]
    best = None
    if len(sizes) == 2:
        each = (sizes[48] - sizes[16]) / 32
        guess = int(48 + (cap * 1e9 - sizes[48]) / max(each, 1))
        for batch in (guess, int(guess * 0.97), int(guess * 0.93), int(guess * 0.85)):
            if best is None and bench.left() > 15:
                best = bench.ours("memory", batch=batch, quiet=True, **options)
    compiled = None
    if best and bench.left() > 45:
        peer = Peer(bench, "memory", model="gpt2", batch=best["batch"], length=length, steps=5, warmup=3,
                    compile="whole")
        compiled = peer.round()
        peer.close()
    eager = max(found.values(), default=None)
    row = bench.add(row="memory", summary=True, cap_gb=cap, length=length, pytorch=found,
                    shoal=best["batch"] if best else None,
                    batch_ratio=best["batch"] / eager if best and eager else None,
                    tokens_per_second=best["tokens_per_second"] if best else None,
                    pytorch_compile=compiled["tokens_per_second"] if compiled else None,
                    held_peak=best["memory"]["held_peak"] if best else None)
    print(f"  memory: largest batch under {cap} GB at T = {length}: PyTorch eager {found}, ours {row['shoal']}; "
          f"tokens/s there {row['tokens_per_second'] or 0:.0f}, PyTorch compile's {row['pytorch_compile'] or 0:.0f}")


def fault(bench, name, said, environment=(), **options):
    """Runs gpt2_gpu_step, which must end with status 1, and with every word of `said` in its last line."""
    command = [bench.program, "--model", "gpt2"]
    for key, value in options.items():
        command += [f"--{key.replace('_', '-')}", str(value)]
    try:
        done = subprocess.run(command, env={**bench.context.environment, **dict(environment)},
                              capture_output=True, text=True, timeout=min(60, bench.left()))
        ended, lines = done.returncode, done.stderr.strip().split("\n")
    except subprocess.TimeoutExpired as late:
        ended, lines = f"took more than {late.timeout:.0f} s", []
    told = ended == 1 and all(word in lines[-1] for word in said)
    row = bench.add(row="faults", case=name, told=told, ended=ended, line=" | ".join(lines)[:600])
    if not told:
        row["error"] = "not one line with " + ", ".join(said)
    print(f"  faults, {name}: {'told' if told else 'NOT told'}: {row['line']}")


def faults(bench):
    """Runs that cannot work give the reason in one line: the requested bytes, the bytes of each tag, the remedy."""
    fault(bench, "out of memory", ("bytes", "activations", "parameters", "optimizer"), batch=16384, length=1024,
          warmup=1, steps=1)
    fault(bench, "no device", ("CUDA_VISIBLE_DEVICES",), environment={"CUDA_VISIBLE_DEVICES": ""}, batch=1)


def run(context):
    bench = Bench(context)
    work = {"kernels": lambda: kernels(bench),
            **{f"step-{m}": (lambda m=m: gpt2_steps(bench, m)) for m in BATCHES},
            **{row: (lambda row=row: other_steps(bench, row)) for row in OTHER_MODELS},
            "capture": lambda: capture(bench), "offload": lambda: offload(bench),
            "memory": lambda: memory(bench), "faults": lambda: faults(bench)}
    left_out, parts = [], []
    for name, what in work.items():
        if not re.search(context.only or "", name):
            continue
        if bench.left() < NEEDS[name] * 0.6:
            left_out.append(name)
            continue
        began = time.time()
        bench.part = name
        parts.append(name)
        try:
            what()
        except Exception as problem:  # keep the other rows
            bench.add(row=name, error=repr(problem)[:300])
            print(f"{name}: {problem!r}"[:300])
        print(f"{name}: {time.time() - began:.0f} s")
    print(f"\n{'step, tokens/s':18} {'batch':>10} {'Shoal':>9} {'PyTorch':>9} {'ratio':>6} {'TFLOP/s':>8} "
          f"{'sequences/s':>12} {'attention':>9} {'compile s':>9}")
    for row in bench.rows:
        if row.get("summary") and "model" in row:
            def cell(key, form):
                return format(row[key], form) if row.get(key) is not None else "-"
            batch = f"{row['batch']} x {row['length']}"
            sequences = f"{row['shoal'] / row['length']:.0f}" if row["shoal"] else "-"
            print(f"{row['row']:18} {batch:>10} {cell('shoal', '.0f'):>9} {cell('pytorch', '.0f'):>9} "
                  f"{cell('ratio', '.2f'):>6} {cell('tflops', '.0f'):>8} {sequences:>12} {row['attention'] or '-':>9} "
                  f"{cell('compile_seconds', '.0f'):>9}")
    if left_out:
        print(f"left out for want of time: {', '.join(left_out)}")
    return dict(ok=not left_out and not any("error" in r for r in bench.rows), rows=bench.rows, parts=parts,
                left_out=left_out)


def with_earlier(now, before):
    """Keeps the rows of an earlier call of this piece that the call `now` did not measure again."""
    kept = [row for row in before.get("rows", []) if row.get("part") not in now["parts"]]
    parts = [part for part in before.get("parts", []) if part not in now["parts"]] + now["parts"]
    left_out = [part for part in dict.fromkeys(before.get("left_out", []) + now["left_out"]) if part not in parts]
    rows = kept + now["rows"]
    return {**now, "rows": rows, "parts": parts, "left_out": left_out}
