#!/usr/bin/env python3
"""Writes tests/golden/tasks.json: what the tasks make of small data, by Hugging Face's fast tokenizers and the
algorithms of transformers' examples run_qa.py, utils_qa.py, run_ner.py and run_glue.py, written anew here.

One difference: run_qa's search for the token where an answer begins runs past the context where that is a
window's last token, over special tokens whose offsets are (0, 0); here it stops at the context's end.

Needs the packages `tokenizers` and `numpy`, the tokenizers of make_tokenizer_cases.py, and for the part
"sample" bert-base-uncased-vocab.txt and squad-v1.1-sample.json. Deterministic.
"""
import argparse
import collections
import hashlib
import json
import pathlib
import re
import string
import struct

import numpy
from tokenizers import BertWordPieceTokenizer, Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden"

CONTEXTS = [
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness "
    "was upon the face of the deep. And the Spirit of God moved upon the face of the waters.",
    "Caf\u00e9 \u00c9lan  sold 1,000 cr\u00eapes \u2014 na\u00efvely \u2014 in \u4e2d\u6587 to\tDr. O'Neil (b. 1962).",
    "God said",
]
QUESTIONS = [  # context, question, accepted answers
    (0, "Who created the heaven?", ["God", "God"]), (0, "  What moved upon the waters", ["the Spirit of God", "Spirit"]),
    (0, "Where was darkness?", ["upon the face of the deep"]), (0, "last", ["waters"]), (0, "first", ["In the"]),
    (1, "How many cr\u00eapes?", ["1,000"]), (1, "To whom?", ["Dr. O'Neil", "O'Neil (b. 1962)"]), (1, "Language?", ["\u4e2d\u6587"]),
    (1, "part of a word", ["lan"]), (2, "Who?", ["God"]), (2, "Nobody?", []),
]
SENTENCES = [
    (["In", "the", "beginning", "God", "created", "Adamant", "heaven"], ["O", "O", "O", "B-PER", "O", "B-LOC", "I-LOC"]),
    (["don't", "\u00c9lan", "\u200b", "unheard-of", "[MASK]", "Zebulun"], ["O", "B-PER", "B-MISC", "O", "O", "B-ORG"]),
    (["a"] * 9 + ["beginnings"] * 9, ["O"] * 9 + ["B-MISC"] * 9),
]
PAIRS = [("In the beginning God created the heaven and the earth", "God"), ("God", "And the earth was without form, and void"),
         ("In the beginning God created", "and the earth was without form"), ("", "the earth"), ("In the", ""),
         ("God said", None), ("In the beginning God created the heaven and the earth", None), ("", None)]


def digest(numbers):
    return hashlib.sha256(struct.pack(f"<{len(numbers)}i", *numbers)).hexdigest()[:16]


def truncations(tokenizer):
    """(tokens of the first text, of the second, available length, what remains of each)."""
    result = []
    for first in (0, 1, 3, 4, 7, 12):
        for second in (0, 1, 3, 4, 8, 12):
            for room in (1, 2, 5, 6, 7, 11):
                tokenizer.enable_truncation(room + 3)
                ids = tokenizer.encode("the " * first, "the " * second).sequence_ids
                result.append([first, second, room, ids.count(0), ids.count(1)])
    tokenizer.no_truncation()
    return result


def inputs(tokenizer):
    result = []
    for first, second in PAIRS:
        for length in (5, 8, 11, 64):
            tokenizer.enable_truncation(length)
            encoding = tokenizer.encode(first, second)
            result.append({"first": first, "second": second, "max_length": length, "ids": encoding.ids,
                           "types": encoding.type_ids})
    tokenizer.no_truncation()
    return result


def sentences(tokenizer, max_length=12):
    """Like run_ner: ids, labels at first tokens, labels at all tokens."""
    names = sorted({tag for _, tags in SENTENCES for tag in tags})
    tokenizer.enable_truncation(max_length)
    result = []
    for words, tags in SENTENCES:
        encoding = tokenizer.encode(words, is_pretokenized=True)
        first, every, before = [], [], None
        for word in encoding.word_ids:
            label = -100 if word is None else names.index(tags[word])
            inside = tags[word].replace("B-", "I-") if word is not None and tags[word].startswith("B-") else None
            later = names.index(inside) if inside in names else label
            first.append(label if word != before else -100)
            every.append(label if word != before else later)
            before = word
        result.append({"words": words, "tags": tags, "ids": encoding.ids, "first": first, "all": every})
    tokenizer.no_truncation()
    return {"names": names, "max_length": max_length, "sentences": result}


def features(tokenizer, cls, examples, max_length, stride):
    """For each window: question, ids, types, offsets of the context's tokens (None elsewhere), start, end."""
    tokenizer.enable_truncation(max_length, stride=stride, strategy="only_second")
    result = []
    for number, example in enumerate(examples):
        encoding = tokenizer.encode(example["question"].lstrip(), example["context"])
        for window in [encoding] + encoding.overflowing:
            offsets = [span if text == 1 else None for span, text in zip(window.offsets, window.sequence_ids)]
            inside = [i for i, span in enumerate(offsets) if span is not None]
            start = end = window.ids.index(cls) if cls in window.ids else 0
            if example["answers"]:
                begin = example["answers"][0]["answer_start"]
                beyond = begin + len(example["answers"][0]["text"])
                if offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= beyond:
                    start = max(i for i in inside if all(offsets[j][0] <= begin for j in inside if j <= i))
                    end = min(i for i in inside if all(offsets[j][1] >= beyond for j in inside if j >= i))
            result.append({"question": number, "ids": window.ids, "types": window.type_ids, "offsets": offsets,
                           "start": start, "end": end})
    tokenizer.no_truncation()
    return result


def logit(kind, feature, position):
    """Numbers that the C++ test computes too: multiples of 2^-20 in [-8, 8), exact in 32 bits."""
    x = (feature * 1000003 + position * 7919 + kind * 104729 + 12345) * 2654435761 % 2**32
    x ^= x >> 16
    x = x * 0x45D9F3B % 2**32
    x ^= x >> 16
    return numpy.float32((x >> 8) / 2**20 - 8)


def logits_of(number, feature):
    start = [logit(1, number, i) for i in range(len(feature["ids"]))]
    end = [logit(2, number, i) for i in range(len(feature["ids"]))]
    if number % 3 and feature["start"] > 0:
        start[feature["start"]] = end[feature["end"]] = numpy.float32(9.5)
    return start, end


def highest(values, count):
    return sorted(range(len(values)), key=lambda i: (values[i], i), reverse=True)[:count]


def predict(examples, features_, negative, n_best=20, max_answer_length=30, threshold=0.0):
    """For each example: the text, the remaining candidates, the null score's difference."""
    by_example = collections.defaultdict(list)
    for number, feature in enumerate(features_):
        by_example[feature["question"]].append((number, feature))
    result = []
    for example_number, example in enumerate(examples):
        null, found = None, []
        for number, feature in by_example[example_number]:
            start, end = logits_of(number, feature)
            if null is None or start[0] + end[0] < null["score"]:
                null = {"span": (0, 0), "score": start[0] + end[0], "start": start[0], "end": end[0]}
            for i in highest(start, n_best):
                for j in highest(end, n_best):
                    spans = feature["offsets"][i], feature["offsets"][j]
                    if None not in spans and i <= j < i + max_answer_length:
                        found.append({"span": (spans[0][0], spans[1][1]), "score": start[i] + end[j],
                                      "start": start[i], "end": end[j]})
        found += [null] if negative else []
        found = sorted(found, key=lambda candidate: -candidate["score"])[:n_best]
        if negative and all(candidate["span"] != (0, 0) for candidate in found):
            found.append(null)
        best = [{"text": example["context"][slice(*c["span"])], "score": float(c["score"]), "start": float(c["start"]),
                 "end": float(c["end"])} for c in found]
        if not best or [candidate["text"] for candidate in best] == [""]:
            best.insert(0, {"text": "empty", "score": 0.0, "start": 0.0, "end": 0.0})
        weights = numpy.exp(numpy.array([candidate["score"] for candidate in best]) - max(c["score"] for c in best))
        for candidate, weight in zip(best, weights / weights.sum()):
            candidate["probability"] = float(weight)
        answer = {"text": best[0]["text"], "best": best}
        if negative:
            first = next(candidate for candidate in best if candidate["text"])
            answer["difference"] = float(null["score"] - numpy.float32(first["start"]) - numpy.float32(first["end"]))
            answer["text"] = "" if answer["difference"] > threshold else first["text"]
        result.append(answer)
    return result


def normalized(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def score(prediction, accepted):
    """Exact match and F1, computed like the official scripts."""
    words = normalized(prediction)
    if not accepted:
        return (float(not words),) * 2
    exact, f1 = 0.0, 0.0
    for answer in accepted:
        wanted = normalized(answer)
        shared = sum((collections.Counter(words) & collections.Counter(wanted)).values())
        exact = max(exact, float(words == wanted))
        f1 = max(f1, 2 * shared / (len(words) + len(wanted)) if shared else 0.0)
    return exact, f1


def totals(examples, predictions):
    scores = [score(p["text"], [a["text"] for a in e["answers"]]) for e, p in zip(examples, predictions)]
    return [100 * sum(column) / len(scores) for column in zip(*scores)]


def flat(features_):
    """Features without information that the ids contain: spans of context tokens, the first one's position."""
    result = []
    for feature in features_:
        spans = [span for span in feature["offsets"] if span is not None]
        first = next(i for i, span in enumerate(feature["offsets"]) if span is not None)
        result.append({**feature, "offsets": [at for span in spans for at in span], "first": first})
    return result


def short(answer):
    best = [[c["text"], c["start"], c["end"], round(c["probability"], 9)] for c in answer["best"]]
    return [answer["text"], answer.get("difference", 0.0), best]


def without_prefix_space(tokenizer):
    """In the form of a saved roberta-base. `tokenizers` then lets the first token of every window begin with its
    space."""
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"]["add_prefix_space"] = state["post_processor"]["add_prefix_space"] = False
    return Tokenizer.from_str(json.dumps(state))


def small_examples():
    return [{"id": f"q{i}", "question": question, "context": CONTEXTS[context],
             "answers": [{"text": text, "answer_start": CONTEXTS[context].index(text)} for text in answers]}
            for i, (context, question, answers) in enumerate(QUESTIONS)]


def small_squad(tokenizers):
    examples = small_examples()
    paragraphs = [{"context": context, "qas": [
        {key: example[key] for key in ("id", "question", "answers")} | {"is_impossible": not example["answers"]}
        for example in examples if example["context"] == context]} for context in CONTEXTS]
    runs = []
    for name, (tokenizer, cls) in tokenizers.items():
        shapes = ((30, 8, (False, True)), (40, 0, ()), (384, 128, (False, True)))
        for max_length, stride, modes in shapes[:1] if cls is None else shapes:
            made = features(tokenizer, cls, examples, max_length, stride)
            runs.append({"tokenizer": name, "max_length": max_length, "stride": stride, "features": flat(made)})
            for negative in modes:
                predictions = predict(examples, made, negative, n_best=5, max_answer_length=6)
                runs[-1]["negative" if negative else "plain"] = {
                    "scores": totals(examples, predictions), "answers": [short(answer) for answer in predictions]}
    return {"file": {"version": "small", "data": [{"title": "small", "paragraphs": paragraphs}]}, "runs": runs}


def sample_squad(data):
    """Hashes of every feature and prediction for the sample of SQuAD v1.1."""
    tokenizer = BertWordPieceTokenizer(str(data / "bert-base-uncased-vocab.txt"), lowercase=True)._tokenizer
    examples = [{"id": question["id"], "question": question["question"], "context": paragraph["context"],
                 "answers": question["answers"]}
                for article in json.loads((data / "squad-v1.1-sample.json").read_text())["data"]
                for paragraph in article["paragraphs"] for question in paragraph["qas"]]
    result = []
    for max_length, stride in ((384, 128), (96, 24)):
        made = features(tokenizer, tokenizer.token_to_id("[CLS]"), examples, max_length, stride)
        flattened = flat(made)
        predictions = predict(examples, made, False)
        texts = "\n".join(candidate["text"] for answer in predictions for candidate in answer["best"])
        result.append({
            "max_length": max_length, "stride": stride, "questions": len(examples), "features": len(made),
            "ids": digest([i for f in flattened for i in f["ids"]]), "types": digest([i for f in flattened for i in f["types"]]),
            "offsets": digest([at for f in flattened for at in f["offsets"]]),
            "positions": digest([at for f in flattened for at in (f["first"], f["start"], f["end"])]),
            "answered": sum(f["start"] > 0 for f in made), "texts": hashlib.sha256(texts.encode()).hexdigest()[:16],
            "scores": totals(examples, predictions)})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=GOLDEN / "tasks.json")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data")
    arguments = parser.parse_args()
    word_piece = Tokenizer.from_file(str(GOLDEN / "tokenizer/word_piece.json"))
    roberta = Tokenizer.from_file(str(GOLDEN / "tokenizer/roberta.json"))
    plain = Tokenizer.from_file(str(GOLDEN / "tokenizer/plain.json"))  # like GPT-2's: no special tokens
    value = {
        "truncations": truncations(word_piece),
        "inputs": {"word_piece": inputs(word_piece), "roberta": inputs(roberta)},
        "tagged": {"word_piece": sentences(word_piece), "roberta": sentences(roberta)},
        "squad": small_squad({"word_piece": (word_piece, word_piece.token_to_id("[CLS]")),
                              "roberta": (without_prefix_space(roberta), roberta.token_to_id("<s>")),
                              "plain": (plain, None)}),
        "sample": sample_squad(arguments.data),
    }
    arguments.output.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
