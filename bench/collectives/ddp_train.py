#!/usr/bin/env python3
"""Compares training of GPT-2 124M, including the computation: `shoal train` and PyTorch's DDP over gloo, by turns.

    sudo bench/collectives/ddp_train.py --python PYTHON --cluster hosts=2,ranks=1,rails=1,rate=1gbit

Both sides: the same sizes, f32, --threads a rank, AdamW at a constant rate, no clipping, no dropout, the same random
ids in every sample of every rank, the same first weights, buckets of the same bytes. Each round runs each contestant
once, and the script ends if the losses of the same steps differ by over 1 %. A step's time is the median over all
rounds' windows of --window steps (with updates that run behind the next forward, the last step of each window of
Shoal's waits for all). alone is a step of the same ranks side by side that reduce nothing: Shoal's each train by
themselves, PyTorch's under no_sync(). exposed is what a step takes beyond that. PYTHON is a virtual environment's
with torch; without it only Shoal runs.
"""

import argparse
import hashlib
import json
import os
import random
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile

from compare import ROOT, Runner

VOCABULARY = 50257
WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                   "MASTER_PORT")
COLUMNS = (("contestant", "{}"), ("p50_seconds", "{:.3f}"), ("worst_seconds", "{:.3f}"),
           ("alone_seconds", "{:.3f}"), ("exposed_seconds", "{:.3f}"), ("hidden_share", "{:.2f}"),
           ("times_as_fast_as_pytorch", "{:.2f}"), ("loss", "{}"))


def sample(length):
    """one sample's ids; bench/peers/pytorch_ddp_gpt2.py makes the same"""
    return random.Random(1).choices(range(VOCABULARY), k=length)


def write_tokens(path, ids):
    """train/data/token_file.h, version 1: one document of `ids`"""
    data = struct.pack("<8sII48x", b"SHOALTOK", 1, 2) + struct.pack(f"<{len(ids)}H", *ids)
    data += bytes(-len(data) % 8) + struct.pack("<QQ", 0, len(ids))
    trailer = struct.pack("<QQq32s", len(ids), 1, max(ids), bytes(32)) + hashlib.sha256(data).digest()
    trailer += hashlib.sha256(trailer).digest() + b"SHOALEND"
    with open(path, "wb") as file:
        file.write(data + trailer)


def shoal(arguments, runner, directory, extra, alone=False):
    """one run -> its records in metrics.jsonl, as one row"""
    output = os.path.join(directory, "output")
    windows = arguments.warmup + (1 if alone else arguments.windows)
    program = ["env", f"OMP_NUM_THREADS={arguments.threads}",
               f"{os.path.abspath(arguments.build)}/apps/shoal", "train",
               *arguments.model, "--train_file", os.path.join(directory, "tokens.shoaltok"),
               "--block_size", str(arguments.length), "--per_device_train_batch_size", str(arguments.batch),
               "--max_steps", str(windows * arguments.window), "--logging_steps", str(arguments.window),
               "--save_strategy", "no", "--max_grad_norm", "0", "--learning_rate", "1e-4",
               "--lr_scheduler_type", "constant", "--ddp_bucket_cap_mb", str(arguments.bucket_mb),
               "--overwrite_output_dir", "true", "--disable_tqdm", "true"] + extra
    if alone:  # each rank is a world of its own, all at once
        by_itself = (["env"] + [word for name in WORLD_VARIABLES for word in ("-u", name)] + program)
        script = f'exec {shlex.join(by_itself)} --output_dir {shlex.quote(output)}."$RANK"'
        runner.output("plain", ["sh", "-c", script])
        output += ".0"
    else:
        runner.output("open-mpi", program + ["--output_dir", output])
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    records = [record for record in records if "elapsed" in record]
    times = [(b["elapsed"] - a["elapsed"]) / (b["step"] - a["step"]) for a, b in zip(records, records[1:])]
    return {"step_seconds": times[arguments.warmup - 1:],
            "hidden_share": [record["hidden_communication_share"] for record in records[arguments.warmup:]
                             if "hidden_communication_share" in record],
            "loss": [round(record["loss"], 3) for record in records]}


def pytorch(arguments, runner, backend):
    peer = ["env", f"PYTHONPATH={arguments.package or ''}",
            "MASTER_ADDR=10.77.0.10" if runner.cluster else "MASTER_ADDR=127.0.0.1",
            f"GLOO_SOCKET_IFNAME={'eth0' if runner.cluster else 'lo'}", f"OMP_NUM_THREADS={arguments.threads}",
            arguments.python, f"{ROOT}/bench/peers/pytorch_ddp_gpt2.py", "--batch", str(arguments.batch),
            "--length", str(arguments.length), "--bucket-mb", str(arguments.bucket_mb),
            "--warmup", str(arguments.warmup), "--windows", str(arguments.windows),
            "--window", str(arguments.window), "--threads", str(arguments.threads), "--backend", backend]
    return runner.rows("plain" if runner.cluster else "open-mpi", peer)[0]


def check_losses(rows):
    """the same training, so the same losses but for rounding"""
    last = {name: of[-1]["loss"] for name, of in rows.items() if of}
    for name, losses in last.items():
        for mine, theirs in zip(losses, next(iter(last.values()))):
            if not abs(mine - theirs) <= 0.01 * theirs:
                raise SystemExit(f"ddp_train: {name}'s losses {losses} are not those of another: {last}")


def measure(arguments, runner, variants):
    """name -> the rows of its rounds"""
    names = [*variants, "shoal, alone"] if runner.cluster and variants else [*variants]
    names += ["pytorch"] if arguments.python else []
    names += ["pytorch, shoal"] if arguments.package else []
    rows = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as directory:
        copies = arguments.batch * runner.ranks * 40
        write_tokens(os.path.join(directory, "tokens.shoaltok"), sample(arguments.length) * copies)
        arguments.model = ["--config_name", "gpt2", "--config_overrides",
                           "resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"]
        if arguments.python:
            subprocess.run([arguments.python, f"{ROOT}/bench/peers/pytorch_ddp_gpt2.py", "--write-initial",
                            directory], check=True)
            arguments.model = ["--model_name_or_path", directory]
        for number in range(arguments.rounds):
            for name in rows:
                print(f"round {number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
                if name.startswith("pytorch"):
                    rows[name].append(pytorch(arguments, runner, "gloo" if name == "pytorch" else "shoal"))
                else:
                    rows[name].append(shoal(arguments, runner, directory, shlex.split(variants.get(name, "")),
                                            name == "shoal, alone"))
                print(json.dumps(rows[name][-1]), file=sys.stderr, flush=True)
            check_losses(rows)
    return rows


def middle(rows, key):
    return statistics.median(value for row in rows for value in row[key])


def summaries(arguments, runner, rows):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"], text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    for name, of in rows.items():
        line = {"operation": "gpt2_124m_training_step", "contestant": name, "cluster": runner.cluster,
                "dtype": "f32", "batch": arguments.batch, "length": arguments.length,
                "threads": arguments.threads, "bucket_bytes": int(arguments.bucket_mb * 2**20),
                "rounds": arguments.rounds, "window": arguments.window,
                "p50_seconds": round(middle(of, "step_seconds"), 4),
                "worst_seconds": round(max(s for row in of for s in row["step_seconds"]), 4)}
        alone = None
        if name.startswith("pytorch"):
            alone = middle(of, "alone_seconds")
        elif name != "shoal, alone":
            if "shoal, alone" in rows:
                alone = middle(rows["shoal, alone"], "step_seconds")
            line["hidden_share"] = round(middle(of, "hidden_share"), 3)
        if name not in ("pytorch", "shoal, alone"):
            if "pytorch" in rows:
                ratio = middle(rows["pytorch"], "step_seconds") / middle(of, "step_seconds")
                line["times_as_fast_as_pytorch"] = round(ratio, 3)
        if alone is not None:
            line["alone_seconds"] = round(alone, 4)
            line["exposed_seconds"] = round(line["p50_seconds"] - alone, 4)
        yield {**line, "loss": of[-1]["loss"], "commit": commit}


def table(lines):
    cells = [[name for name, _ in COLUMNS]]
    cells += [[form.format(line[name]) if name in line else "" for name, form in COLUMNS] for line in lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="hosts=2,ranks=1,rails=1,rate=1gbit",
                        help="emulated; empty: --ranks on this host")
    parser.add_argument("--ranks", type=int, default=2, help="on this host, with --cluster ''")
    parser.add_argument("--batch", type=int, default=1, help="samples of a rank")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sample")
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--window", type=int, default=3, help="steps of a window")
    parser.add_argument("--warmup", type=int, default=1, help="windows before the first that counts")
    parser.add_argument("--windows", type=int, default=2, help="timed ones of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=OPTIONS",
                        help="a Shoal with these options of shoal train, instead of the two")
    parser.add_argument("--python", help="with torch; PyTorch's step is run beside ours")
    parser.add_argument("--package", metavar="DIRECTORY",
                        help="with the package shoal, such as build/release/python: PyTorch's step over its "
                        "backend is run too")
    parser.add_argument("--only-pytorch", action="store_true", help="leave `shoal train` out")
    parser.add_argument("--build", default=f"{ROOT}/build/release")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one contestant's turn")
    parser.add_argument("--json", action="store_true", help="one JSON line a contestant, no table")
    arguments = parser.parse_args()
    if arguments.warmup < 1:
        parser.error("--warmup must be at least 1: the first window holds the start")
    runner = Runner(arguments)
    own = [] if arguments.only_pytorch else ["shoal=", "shoal, late=--ddp_overlap_forward false"]
    variants = dict(variant.partition("=")[::2] for variant in arguments.variant or own)
    lines = list(summaries(arguments, runner, measure(arguments, runner, variants)))
    if arguments.json:
        for line in lines:
            print(json.dumps(line), flush=True)
    else:
        table(lines)


if __name__ == "__main__":
    main()
