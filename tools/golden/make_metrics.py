#!/usr/bin/env python3
"""Writes tests/golden/metrics/: predictions, labels and the metrics of scikit-learn, SciPy and torchmetrics.

Needs the packages scikit-learn, scipy and torchmetrics. Deterministic.
"""
import argparse
import json
import pathlib
import random
import warnings

from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torchmetrics.functional.text import squad
from torchmetrics.functional.text.squad import _normalize_text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

ANSWERS = [
    ("the Denver Broncos", ["Denver Broncos", "Carolina Panthers"]), ("", [""]), ("", ["x"]), ("a", ["the"]), ("an a the", ["a an"]),
    ("Saint-Denis", ["Saint Denis"]), ("it's", ["its", "it is"]), ("a b c", ["c b a"]), ("b b b", ["b b"]), ("b", ["b b b"]),
    ("the other theatre", ["other theatre"]), ("plan-a", ["plan"]), ("vitamin a, b", ["vitamin b"]), ("\u00c9T\u00c9 2015", ["\u00e9t\u00e9 2015"]),
    ("\u03a3\u0391\u03a3 \u1e9e", ["\u03c3\u03b1\u03c2 \u00df"]), ("\u2014the\u2014", ["\u2014 \u2014"]), ("\u201ca\u201d quote", ["quote"]), ("a\u00a0b\u3000c", ["b c"]),
    ("\u4e2dthe\u6587", ["\u4e2d\u6587"]), ("the\u0301 x", ["x"]), ("a_b the_", ["b"]), ("1\u00bda a\u00b2", ["1\u00bda"]), ("x\x1cy\x1fz", ["x y z"]),
    ("$1,000.50", ["1000.50", "1,00050"]), ("AN APPLE", ["apple", "apples"]), ("one two three four", ["two", "three four five"]),
    ("\u0130stanbul", ["i\u0307stanbul"]), ("the  \n the", ["the"]),
]


def words():
    rng, pool = random.Random(5), ["a", "The", "an", "red", "Blue", "fish,", "42", "-", "one's", "caf\u00e9", "\u2019s"]
    return [(" ".join(rng.choices(pool, k=rng.randint(0, 6))),
             [" ".join(rng.choices(pool, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3))]) for _ in range(60)]


def answers():
    result = []
    for prediction, accepted in ANSWERS + words():
        score = squad([{"prediction_text": prediction, "id": "0"}],
                      [{"answers": {"text": accepted, "answer_start": [0] * len(accepted)}, "id": "0"}])
        # If nothing remains of either text, torchmetrics follows the rule of SQuAD 2.0 and returns 1; the
        # script of v1.1 returns 0.
        f1 = float(score["f1"]) / 100 if _normalize_text(prediction) else 0
        result.append({"prediction": prediction, "accepted": accepted,
                       "exact_match": float(score["exact_match"]) / 100, "f1": f1})
    return result


def classes():
    rng, result = random.Random(3), []
    for classes_, size in ((2, 1), (2, 2), (2, 50), (2, 51), (3, 40), (5, 200)):
        labels = [rng.randrange(classes_) for _ in range(size)]
        for predictions in ([y if rng.random() < 0.7 else rng.randrange(classes_) for y in labels],
                            [0] * size, [1] * size, [1 - min(y, 1) for y in labels], labels):
            row = {"predictions": predictions, "labels": labels, "accuracy": accuracy_score(labels, predictions),
                   "matthews_correlation": matthews_corrcoef(labels, predictions)}
            if classes_ == 2:
                row["f1"] = f1_score(labels, predictions, zero_division=0)
            result.append(row)
    return result


def scores():
    rng, result = random.Random(4), []
    for size in (2, 3, 30, 31, 300):
        labels = [round(rng.uniform(0, 5), 1) for _ in range(size)]
        for noise in (0.0, 0.5, 4.0):
            predictions = [y + rng.gauss(0, 1) * noise for y in labels]
            if size > 3:
                predictions = [round(p, 1) for p in predictions]
            result.append({"predictions": predictions, "labels": labels, "pearson": float(pearsonr(predictions, labels)[0]),
                           "spearmanr": float(spearmanr(predictions, labels)[0])})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests/golden/metrics.json")
    warnings.simplefilter("ignore")
    value = {"answers": answers(), "classes": classes(), "scores": scores()}
    parser.parse_args().output.write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
