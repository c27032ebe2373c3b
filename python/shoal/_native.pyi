from typing import Protocol

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
