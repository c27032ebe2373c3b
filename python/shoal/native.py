"""Shoal's own training and generation, in this process. They need no PyTorch."""
import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any, Protocol



class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class _NotebookBar:
    """A progress line below the notebook cell. Each write replaces its text."""

    def __init__(self) -> None:
        self._shown: Any = None

    def write(self, text: str) -> None:
        from IPython.display import display

        line = {"text/plain": text.rpartition("\x1b[K")[2]}  # without the escape sequence that erases a terminal's line
        if self._shown is None:
            self._shown = display(line, raw=True, display_id=True)
        else:
            self._shown.update(line, raw=True)

    def flush(self) -> None:
        pass


@functools.cache
def _native() -> Any:
    # libgomp reads this variable when it is loaded. With it, idle threads of libgomp soon sleep.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from shoal import _native
    return _native


def _bar() -> tuple[_Stream | None, int]:
    """The stream for a progress bar, and its width in columns. None: no bar."""
    if "ipykernel" in sys.modules:
        return _NotebookBar(), 80
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr, shutil.get_terminal_size().columns
    return None, 0


def train(options: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, evaluates and predicts as the program `shoal train` does, and returns the metrics.

        shoal.train({"model_name_or_path": "gpt2", "train_file": "corpus.txt", "output_dir": "out"})

    `options` are those of `shoal train`, by Hugging Face's names. The metrics are those of all_results.json:
    train_loss, train_runtime, eval_loss and so on. Every rank of the run calls it. Wrong options or data raise
    ValueError, other failures RuntimeError, with the program's line as their text.

    Ctrl-C saves a checkpoint where training has begun, ends the run and raises KeyboardInterrupt; SIGTERM and SIGUSR1
    do the same with SystemExit. A second one ends the process.
    """
    given = json.dumps(dict(options), default=os.fspath)
    bar, columns = _bar()
    status, metrics, problem = _native().train(given, sys.stdout, bar, columns)
    if status == 0:
        return json.loads(metrics)
    # The run may also fail after the signal, for example if the disk is full when the checkpoint is written.
    told = f"; {problem}" if problem and "stopped by signal" not in problem else ""
    if status == 128 + signal.SIGINT:
        raise KeyboardInterrupt(f"shoal.train: stopped by Ctrl-C{told}")
    if status > 128:
        if told:
            print(f"shoal.train: stopped by signal {status - 128}{told}", file=sys.stderr)
        raise SystemExit(status)
    problem = problem or "another rank failed, and says why"
    raise (ValueError if status in (2, 3) else RuntimeError)(f"shoal.train: {problem}")


def generate(model: str | os.PathLike[str], prompt: str, **options: Any) -> str:
    """Returns the prompt followed by the model's continuation, as the program `shoal generate` prints them.

        shoal.generate("out", "In the beginning", max_new_tokens=40, seed=1)

    `model` is a Hugging Face directory, or a run with checkpoints. `options` are the program's, by name: tokenizer,
    max_new_tokens, temperature, top_k, top_p, min_p, num_beams, length_penalty, early_stopping, repetition_penalty,
    no_repeat_ngram_size, stop (a string or several), seed, greedy, bf16, no_stop.
    """
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    return _native().generate(os.fspath(model), prompt, **options)
