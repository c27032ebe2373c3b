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
    max_new_tokens: int = 20,
    temperature: float = 1.0,
    top_k: int = 50,
    top_p: float = 1.0,
    seed: int = 42,
    greedy: bool = False,
    bf16: bool = False,
    no_stop: bool = False,
) -> str: ...

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
