"""SMP's functions that translate state dicts between Hugging Face's models and its own, by their names.

    from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import translate_state_dict_to_hf_gpt2
    whole = translate_state_dict_to_hf_gpt2(model.state_dict(), max_seq_len=1024)

Here a DistributedModel's state dict has Hugging Face's names and shapes already, so they change nothing. ValueError:
the state dict is of a DistributedTransformer that the script has built of smp.nn.
"""
import types
from typing import Any


def _translate(state_dict: dict[str, Any], max_seq_len: int | None = None) -> dict[str, Any]:
    own = next((name for name in state_dict if "seq_layers." in name), None)
    if own is not None:
        raise ValueError(f"the state dict has {own}, which is of a DistributedTransformer of smp.nn: only state dicts "
                         "with Hugging Face's names are translated")
    return state_dict


def _module(family: str) -> types.ModuleType:
    made = types.ModuleType(family, __doc__)
    for suffix in ("", f"_{family}"):
        for direction in ("hf_state_dict_to_smdistributed", "state_dict_to_hf"):
            setattr(made, f"translate_{direction}{suffix}", _translate)
    return made


modules = {family: _module(family) for family in ("bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta", "t5", "vit")}
globals().update(modules)
