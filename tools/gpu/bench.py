"""The piece of the GPU bundle that measures: Shoal's programs beside PyTorch, interleaved."""


def run(context):
    print("bench: this bundle holds no benchmark yet")
    return dict(ok=False, rows=[])
