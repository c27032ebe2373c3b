from collections.abc import Sequence
from typing import Protocol, Required, TypedDict

class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...

def train(options: str, out: _Stream | None, bar: _Stream | None, columns: int) -> tuple[int, str, str]: ...
def generate(
    model: str,
    prompt: str,
    *,
    tokenizer: str = "",
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram_size: int | None = None,
    stop: Sequence[str] = (),
    seed: int = 42,
    greedy: bool = False,
    bf16: bool = False,
    no_stop: bool = False,
) -> str: ...

# Checkpoints of Shoal's format (python/checkpoint.cc).
_Sealed = tuple[str, int, list[int]]  # a file's name, bytes, SHA-256

class CheckpointTransaction:
    def __init__(self, path: str, step: int) -> None: ...
    @property
    def directory(self) -> str: ...
    def commit(self, sealed: Sequence[_Sealed], elsewhere: Sequence[_Sealed]) -> str: ...
    def commit_part(self) -> str: ...

class ShardedCheckpoint:
    def __init__(self, directory: str) -> None: ...
    def tensors(self) -> list[tuple[str, list[int], str]]: ...  # name, shape, dtype
    def read(self, description: str, address: int) -> None: ...

def seal_file(directory: str, name: str) -> _Sealed: ...
def shard_name(rank: int, ranks: int) -> str: ...
def write_shard(
    directory: str, rank: int, ranks: int, tensors: str, addresses: Sequence[int], save: str
) -> None: ...
def checkpoint_problem(path: str, checksums: bool, index: int = 0, readers: int = 1) -> str | None: ...
def list_checkpoints(output_dir: str) -> list[str]: ...
def trainer_state(fields: str) -> str: ...
def read_trainer_state(directory: str) -> str: ...

# The rules of model parallelism (python/parallel.cc).
def parse_smp_parameters(parameters: str, source: str = "mp_parameters") -> str: ...

class Placement:
    def __init__(self, text: str = "cluster") -> None: ...
    @property
    def letters(self) -> str: ...
    def place_of(self, rank: int, shape: tuple[int, int, int]) -> tuple[int, int, int]: ...
    def group(self, rank: int, axis: str, shape: tuple[int, int, int]) -> list[int]: ...

def mesh_shape(
    ranks: int, pipeline_parallel_degree: int, tensor_parallel_degree: int
) -> tuple[int, int, int]: ...

class _Unit(TypedDict, total=False):
    name: Required[str]
    parameters: dict[int, int]  # elements by a number that identifies the parameter
    activation_bytes: int
    peak_bytes: int
    seconds: float
    work: float

class StageCost:
    parameters: int
    microbatches: int
    memory_bytes: float
    seconds: float
    cost: float

class Partition:
    @property
    def stages(self) -> list[tuple[int, int]]: ...
    @property
    def costs(self) -> list[StageCost]: ...

def partition_units(
    units: Sequence[_Unit],
    *,
    stages: int,
    memory_weight: float = 0.2,
    bytes_per_parameter: float = 16,
    microbatches_kept: Sequence[int] = (),
) -> Partition: ...
def partition_table(
    partition: Partition, units: Sequence[_Unit], rank_of_stage: Sequence[int] = ()
) -> str: ...

# A rank's memory in bytes (parallel/apply/layout_memory.h).
def state_memory(
    *, elements: int, persistent: int = 0, dtype: str = "f32", level: int = 0, shards: int = 1
) -> tuple[float, float, float]: ...  # of parameters, gradients and optimizer state
def peak_activations(
    units: Sequence[_Unit],
    *,
    stages: Sequence[tuple[int, int]],
    rank: int = 0,
    schedule: str = "simple",
    microbatches: int = 1,
    stream_bytes: float,
    checkpoint_group: int = 0,
    offloads: bool = False,
    loading_horizon: int = 0,
) -> float: ...
