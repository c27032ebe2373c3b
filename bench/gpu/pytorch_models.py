"""GPT-2, BERT and Llama in plain PyTorch, as fast as PyTorch allows: the models that pytorch_gpt2.py
trains. Projections of one input are one product, vocabularies are padded to a multiple of 128, and
BERT's head computes only the masked positions, like Shoal's.

A model is called as model(ids, targets) or, BERT, model(ids, token_types, rows, targets), and gives the mean
loss. `weights` maps Hugging Face's names to the model's parameters: a name of ours has a list of
theirs, which are stacked (and transposed where GPT-2's are).
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# layers, heads, width; Llama: key heads, inner width
MODELS = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280),
          "gpt2-xl": (48, 25, 1600), "bert-base": (12, 12, 768), "bert-large": (24, 16, 1024),
          "llama-1b": (16, 32, 2048)}
VOCABULARIES = {"gpt2": 50257, "bert": 30522, "llama": 128256}
LLAMA_KEY_HEADS, LLAMA_INNER, ROPE_THETA = 8, 8192, 500000.0


def family(model):
    return model.split("-")[0]


def padded(vocabulary):
    return (vocabulary + 127) // 128 * 128


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # [B, T, C]
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))


class Gpt2Head(nn.Module):
    """The last norm, the tied head and the loss."""

    def __init__(self, width):
        super().__init__()
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x, weight, targets):
        logits = F.linear(self.ln_f(x), weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


class Gpt2(nn.Module):
    causal = True

    def __init__(self, sizes, vocabulary, positions, dropout):
        super().__init__()
        assert not dropout, "GPT-2 is measured without dropout"
        layers, heads, width = sizes
        self.vocabulary = vocabulary
        self.wte, self.wpe = nn.Embedding(padded(vocabulary), width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.head = Gpt2Head(width)
        initialise(self, lambda name: 0.02 / (math.sqrt(2 * layers) if name.endswith(("out.weight", "mlp_out.weight")) else 1))

    def forward(self, ids, targets):  # both [B, T]
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x, self.wte.weight, targets)


class BertBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = self.ln_1(x + F.dropout(y, drop))
        return self.ln_2(x + F.dropout(self.mlp_out(F.gelu(self.mlp_in(x))), drop))


class BertHead(nn.Module):
    """For the masked positions: dense, GELU, norm, the tied decoder with a bias, the loss."""

    def __init__(self, width, vocabulary):
        super().__init__()
        self.dense, self.ln = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(padded(vocabulary)))

    def forward(self, x, weight, rows, targets):
        x = x.reshape(-1, x.size(-1))[rows]
        logits = F.linear(self.ln(F.gelu(self.dense(x))), weight, self.bias)
        return F.cross_entropy(logits.float(), targets)


class Bert(nn.Module):
    causal = False

    def __init__(self, sizes, vocabulary, positions, dropout):
        super().__init__()
        layers, heads, width = sizes
        self.vocabulary, self.dropout = vocabulary, dropout
        self.words, self.positions = nn.Embedding(padded(vocabulary), width), nn.Embedding(positions, width)
        self.types, self.ln = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(BertBlock(width, heads, dropout) for _ in range(layers))
        self.head = BertHead(width, vocabulary)
        initialise(self, lambda name: 0.02)

    def forward(self, ids, token_types, rows, targets):  # [B, T] twice, [n] twice
        x = self.words(ids) + self.positions(torch.arange(ids.size(1), device=ids.device)) + self.types(token_types)
        x = F.dropout(self.ln(x), self.dropout if self.training else 0.0)
        for block in self.blocks:
            x = block(x)
        return self.head(x, self.words.weight, rows, targets)


def rotate(x, cosine, sine):  # [B, H, T, D], [T, D/2]
    a, b = x.chunk(2, dim=-1)
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, inner):
        super().__init__()
        self.heads, self.key_heads, self.dim, self.inner = heads, key_heads, width // heads, inner
        self.ln_1, self.ln_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, width + 2 * key_heads * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, width = x.shape
        keys = self.key_heads * self.dim
        q, k, v = (t.view(batch, length, -1, self.dim).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split((width, keys, keys), dim=2))
        y = F.scaled_dot_product_attention(rotate(q, cosine, sine), rotate(k, cosine, sine), v, is_causal=True,
                                           enable_gqa=self.key_heads != self.heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.ln_2(x)).split(self.inner, dim=2)
        return x + self.down(F.silu(gate) * up)


class LlamaHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, weight, targets):
        logits = F.linear(self.ln(x), weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))


class Llama(nn.Module):
    causal = True

    def __init__(self, sizes, vocabulary, positions, dropout):
        super().__init__()
        assert not dropout, "a Llama is trained without dropout"
        layers, heads, width = sizes
        whole = MODELS["llama-1b"]
        key_heads = LLAMA_KEY_HEADS if heads == whole[1] else max(heads // 4, 1)
        self.vocabulary = vocabulary
        self.words = nn.Embedding(padded(vocabulary), width)
        inner = LLAMA_INNER * width // whole[2]
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, inner) for _ in range(layers))
        self.head = LlamaHead(width)
        dim = width // heads
        angles = torch.outer(torch.arange(positions).float(), ROPE_THETA ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        initialise(self, lambda name: 0.02)

    def forward(self, ids, targets):
        x = self.words(ids)
        cosine, sine = self.cosine[:ids.size(1)], self.sine[:ids.size(1)]
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(x, self.words.weight, targets)


def initialise(model, std_of):
    for name, parameter in model.named_parameters():
        if "ln" in name.split(".")[-2]:
            continue
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=std_of(name))


def make_model(name, sizes, vocabulary, positions, dropout):
    return {"gpt2": Gpt2, "bert": Bert, "llama": Llama}[family(name)](sizes, vocabulary, positions, dropout)


def hugging_face_names(model):
    """This model's names -> Hugging Face's, whose tensors are stacked."""
    names = {}

    def add(ours, theirs, *kinds):
        for kind in kinds or ("weight",):
            names[f"{ours}.{kind}"] = [f"{one}.{kind}" for one in ([theirs] if isinstance(theirs, str) else theirs)]

    both = ("weight", "bias")
    for i in range(len(model.blocks)):
        ours = f"blocks.{i}"
        if isinstance(model, Gpt2):
            theirs = f"transformer.h.{i}"
            for a, b in (("ln_1", "ln_1"), ("ln_2", "ln_2"), ("qkv", "attn.c_attn"), ("out", "attn.c_proj"),
                         ("mlp_in", "mlp.c_fc"), ("mlp_out", "mlp.c_proj")):
                add(f"{ours}.{a}", f"{theirs}.{b}", *both)
        elif isinstance(model, Bert):
            theirs = f"bert.encoder.layer.{i}"
            add(f"{ours}.qkv", [f"{theirs}.attention.self.{x}" for x in ("query", "key", "value")], *both)
            for a, b in (("out", "attention.output.dense"), ("ln_1", "attention.output.LayerNorm"),
                         ("mlp_in", "intermediate.dense"), ("mlp_out", "output.dense"), ("ln_2", "output.LayerNorm")):
                add(f"{ours}.{a}", f"{theirs}.{b}", *both)
        else:
            theirs = f"model.layers.{i}"
            add(f"{ours}.qkv", [f"{theirs}.self_attn.{x}_proj" for x in "qkv"])
            add(f"{ours}.gate_up", [f"{theirs}.mlp.{x}_proj" for x in ("gate", "up")])
            for a, b in (("out", "self_attn.o_proj"), ("down", "mlp.down_proj"), ("ln_1", "input_layernorm"),
                         ("ln_2", "post_attention_layernorm")):
                add(f"{ours}.{a}", f"{theirs}.{b}")
    if isinstance(model, Gpt2):
        add("wte", "transformer.wte"), add("wpe", "transformer.wpe"), add("head.ln_f", "transformer.ln_f", *both)
    elif isinstance(model, Bert):
        for a, b in (("words", "word"), ("positions", "position"), ("types", "token_type")):
            add(a, f"bert.embeddings.{b}_embeddings")
        add("ln", "bert.embeddings.LayerNorm", *both)
        add("head.dense", "cls.predictions.transform.dense", *both)
        add("head.ln", "cls.predictions.transform.LayerNorm", *both)
        names["head.bias"] = ["cls.predictions.bias"]
    else:
        add("words", "model.embed_tokens"), add("head.ln", "model.norm")
    return names


def load(model, tensors):
    """Every parameter, from tensors under Hugging Face's names. All sums leave out padding rows."""
    names = hugging_face_names(model)
    parameters = dict(model.named_parameters())
    assert set(names) == set(parameters), sorted(set(names) ^ set(parameters))
    with torch.no_grad():
        for ours, theirs in names.items():
            value = torch.cat([tensors[one] for one in theirs])
            if isinstance(model, Gpt2) and ours.startswith("blocks") and value.dim() == 2:
                value = value.t()
            parameters[ours].zero_()
            parameters[ours][:value.size(0)] = value
