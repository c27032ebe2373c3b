#!/usr/bin/env python3
"""Compares predicted steps with measured ones on this host.

    bench/parallel/predictions.py --shoal build/release/apps/shoal --ranks 1 2 4 --json rows.json

For each number of ranks it calibrates the host (`shoal plan calibrate`), then trains each model in each layout with
`shoal train --machine`, and reads the prediction and the measurements from run_settings.json and metrics.jsonl. Nothing
is fitted to the steps that are judged. `--layers` shortens the models, which keeps their widths.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

# Family, task, configuration. The vocabulary sizes are the families' own, whatever the tokenizer has.
MODELS = {
    "gpt2": ("gpt2", "causal-lm", {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}),
    "bert": ("bert", "masked-lm", {"num_hidden_layers": 12, "vocab_size": 30522}),
    "albert": ("albert", "masked-lm", {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072,
                                       "num_attention_heads": 12, "embedding_size": 128, "vocab_size": 30000}),
    "llama": ("llama", "causal-lm", {"num_hidden_layers": 8, "hidden_size": 768, "intermediate_size": 2048,
                                     "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000,
                                     "max_position_embeddings": 1024, "tie_word_embeddings": False}),
}
LAYERS = {"gpt2": "n_layer", "bert": "num_hidden_layers", "albert": "num_hidden_layers", "llama": "num_hidden_layers"}


def pipeline(ranks, schedule, microbatches=4, **more):
    return {"pipeline_parallel_degree": ranks, "microbatches": microbatches, "pipeline": schedule, **more}


# Layouts by number of ranks: SMP's parameters and further options of `shoal train`.
LAYOUTS = {
    1: {"whole": {}, "checkpointed": {"gradient_checkpointing": "true"}},
    2: {
        "rdp": {}, "tp": {"mp": {"tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True}},
        **{f"pp {schedule}": {"mp": {**pipeline(2, schedule), "ddp": True}}
           for schedule in ("simple", "interleaved", "1f1b", "zero_bubble")},
        "rdp level 1": {"mp": {"ddp": True, "shard_optimizer_state": True}},
        "rdp level 3": {"mp": {"ddp": True, "sharded_data_parallel_degree": 2}},
    },
    4: {
        "rdp": {}, "tp": {"mp": {"tensor_parallel_degree": 4, "prescaled_batch": True, "ddp": True}},
        "tp x rdp": {"mp": {"tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True}},
        "pp": {"mp": {**pipeline(4, "1f1b"), "ddp": True}},
        "pp x rdp": {"mp": {**pipeline(2, "1f1b"), "ddp": True}},
        "pp x tp": {"mp": {**pipeline(2, "1f1b"), "tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True}},
    },
}


def launch(shoal, ranks, words, log):
    """Runs `shoal` with words on ranks of this host. Returns True if all succeeded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    with open(log, "w", encoding="utf-8") as out:
        for rank in range(ranks):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                       LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            processes.append(subprocess.Popen([shoal, *words], env=env, stdout=out, stderr=subprocess.STDOUT))
        return all([process.wait() == 0 for process in processes])


def make_texts(folder, shoal):
    words = "the shoal swims in cold water and no fish asks where it goes tonight".split()
    state, text = 1, []
    for _ in range(4000):
        for _ in range(9):
            state = state * 1664525 + 1013904223 & 0xFFFFFFFF
            text.append(words[(state >> 16) % len(words)])
        text.append(".\n")
    (folder / "train.txt").write_text(" ".join(text), encoding="utf-8")
    subprocess.run([shoal, "tokenizer", "train", "--vocab-size", "300", "-o", folder / "bpe", folder / "train.txt"],
                   check=True, stdout=subprocess.DEVNULL)
    (folder / "words").mkdir()
    (folder / "words" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words])
                                                + "\n", encoding="utf-8")


def train(args, folder, model, ranks, name, layout, machine):
    family, task, config = MODELS[model]
    config = dict(config, **({LAYERS[model]: args.layers} if args.layers else {}))
    overrides = ",".join(f"{key}={str(value).lower()}" for key, value in config.items())
    out = folder / f"{model}-{ranks}-{name.replace(' ', '_')}"
    replicas = ranks
    for key in ("tensor_parallel_degree", "pipeline_parallel_degree"):
        replicas //= layout.get("mp", {}).get(key, 1)
    words = ["train", "--model_type", family, "--task", task, "--config_overrides", overrides,
             "--tokenizer_name", folder / ("bpe" if task == "causal-lm" else "words"),
             "--train_file", folder / "train.txt", "--block_size", args.length, "--max_steps", args.steps,
             "--logging_steps", 1, "--save_strategy", "no", "--use_cpu", "true", "--do_eval", "false",
             "--per_device_train_batch_size", args.batch // replicas if "mp" in layout else args.batch // ranks,
             "--machine", machine, "--output_dir", out]
    if "mp" in layout:
        words += ["--mp_parameters", json.dumps(layout["mp"])]
    for key, value in layout.items():
        if key != "mp":
            words += [f"--{key}", value]
    log = folder / "log.txt"
    if not launch(args.shoal, ranks, [str(word) for word in words], log):
        reason = [line for line in log.read_text().splitlines() if line.startswith("shoal train:")]
        return {"model": model, "ranks": ranks, "layout": name, "failed": (reason or ["no reason"])[0]}
    predicted = json.loads((out / "run_settings.json").read_text())["predicted"]
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "step_seconds" in record][1:]  # the first step warms up
    row = {"model": model, "ranks": ranks, "layout": name, "predicted": {}, "measured": {}}
    for key, value in predicted.items():
        if key.endswith("_seconds"):
            row["predicted"][key] = value
            row["measured"][key] = statistics.median([record.get(key, 0) for record in records])
    row["memory_predicted"] = predicted["memory_peak_by_tag"]
    row["memory_measured"] = {tag: records[-1]["memory_peak_by_tag"].get(tag, 0)
                              for tag in predicted["memory_peak_by_tag"]}
    row["error"] = row["predicted"]["step_seconds"] / row["measured"]["step_seconds"] - 1
    subprocess.run(["rm", "-r", out], check=True)
    return row


def line_of(row):
    if "failed" in row:
        return f"{row['model']:7} {row['ranks']} {row['layout']:15} {row['failed']}"
    parts = []
    for key, value in row["predicted"].items():
        if key != "step_seconds" and max(value, row["measured"][key]) > 0:
            parts.append(f"{key[:-8]} {1e3 * value:.0f}/{1e3 * row['measured'][key]:.0f}")
    memory = " ".join(f"{tag[:5]} {100 * (value / max(row['memory_measured'][tag], 1) - 1):+.1f}%"
                      for tag, value in row["memory_predicted"].items())
    return (f"{row['model']:7} {row['ranks']} {row['layout']:15} {1e3 * row['predicted']['step_seconds']:8.0f} "
            f"{1e3 * row['measured']['step_seconds']:8.0f} {100 * row['error']:+7.1f} %  "
            f"{', '.join(parts)}; {memory}")


def summarize(rows):
    rows = [row for row in rows if "error" in row]
    errors = sorted(abs(row["error"]) for row in rows)
    if not errors:
        return
    print(f"{len(rows)} steps: median error {100 * statistics.median(errors):.1f} %, largest {100 * errors[-1]:.1f} %, "
          f"{sum(error <= 0.1 for error in errors)} within 10 %")
    for model, ranks in sorted({(row["model"], row["ranks"]) for row in rows}):
        group = [row for row in rows if (row["model"], row["ranks"]) == (model, ranks)]
        taken = min(group, key=lambda row: row["predicted"]["step_seconds"])
        best = min(group, key=lambda row: row["measured"]["step_seconds"])
        print(f"{model} on {ranks}: fastest predicted {taken['layout']}, measured {best['layout']}; the former is "
              f"{100 * (taken['measured']['step_seconds'] / best['measured']['step_seconds'] - 1):.1f} % slower")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shoal", default="build/release/apps/shoal")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--layouts", nargs="+", help="only these")
    parser.add_argument("--layers", type=int, help="of each model; without it the model's own")
    parser.add_argument("--batch", type=int, default=8, help="samples of a step, of all ranks")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--machines", help="a directory that keeps the calibrations: R.json by ranks")
    parser.add_argument("--json", help="a file for the rows")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        make_texts(folder, args.shoal)
        for ranks in args.ranks:
            machine = pathlib.Path(args.machines or folder) / f"{ranks}.json"
            if not machine.exists() and not launch(args.shoal, ranks, ["plan", "calibrate", "--out", str(machine)],
                                                   folder / "log.txt"):
                sys.exit((folder / "log.txt").read_text())
            for model in args.models:
                for name, layout in LAYOUTS[ranks].items():
                    if not args.layouts or name in args.layouts:
                        rows.append(train(args, folder, model, ranks, name, layout, machine))
                        print(line_of(rows[-1]), flush=True)
    summarize(rows)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
