#!/usr/bin/env python3
"""Writes tests/golden/text_metrics.json: texts with the scores of rouge-score and sacrebleu, and stems of NLTK.

Needs the packages rouge-score and sacrebleu. Deterministic.
"""
import argparse
import json
import pathlib
import random

from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

PAIRS = [
    ("the cat sat on the mat", "the cat is on the mat"), ("", "x y"), ("x y", ""), ("", ""), ("?!", "..."),
    ("police killed the gunman", "the gunman police killed"), ("a", "a"), ("a b c d", "a b c d"),
    ("Relational running runners ran quickly.", "The relation of a runner that runs quick"),
    ("First sentence here.\nSecond one is longer, really.", "Second one is short.\nThe first sentence, here."),
    ("one\n\ntwo\nthree", "three\ntwo one\n"), ("\n", "\n\n"), ("to be to be to be", "to be or not to be"),
    ("It costs $1,000.50, or 3.5%.", "It costs 1,000.50 dollars (3.5 %)."), ("year-old 20-year U.S.-based", "20 year old, U.S. based"),
    ("&quot;A &amp; B&quot; &lt;tag&gt; it's", '"A & B" <tag> its'), ("a,b.c,,d..e", "a, b. c,, d .. e"), ("1,2.3,x.4-5-a", "1, 2.3, x.4 - 5 -a"),
    ("Stra\u00dfe \u00c9T\u00c9 na\u00efve caf\u00e9", "strasse \u00e9t\u00e9 naive cafe"), ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d \u4e16\u754c"),
    ("\u212aelvin \u0130stanbul", "kelvin istanbul"), ("tab\there\u00a0nbsp\u3000wide", "tab here nbsp wide"), ("emoji \U0001f600\U0001f680 x", "emoji \U0001f600 x"),
    ("word- \nbroken line-\nend", "word broken lineend"), ("<skipped> x", "x"), ("hello world hello", "hello hello world world"),
]


def noisy():
    rng = random.Random(11)
    pool = ["the", "a", "dogs", "running", "Happily,", "national", "U.S.", "3.14", "well-known", "caf\u00e9", "(see", "below)", "generalizations",
            "dying", "skies", "of", "in", "hoping", "agreed", "It's", "100%", "e.g.", "\u201cquoted\u201d"]
    for _ in range(60):
        reference = [rng.choice(pool) for _ in range(rng.randint(1, 25))]
        prediction = [w if rng.random() < 0.7 else rng.choice(pool) for w in reference if rng.random() < 0.9]
        for words in (reference, prediction):
            for i in range(5, len(words), 6):
                words[i] += "\n"
        yield " ".join(prediction), " ".join(reference)


def words():
    stems = ["relat", "condit", "ration", "valenc", "hesit", "digit", "conform", "radic", "differ", "vile", "analog", "vietnam", "predic", "oper",
             "feud", "decis", "hope", "call", "form", "sensit", "triplic", "electr", "good", "reviv", "allow", "infer", "airlin", "gyroscop",
             "adjust", "defens", "irrit", "replac", "depend", "adopt", "homolog", "commun", "activ", "angular", "effect", "bowdler", "probat",
             "ceas", "control", "roll", "tr", "sk", "fl", "sh", "y", "syzyg", "hop", "tann", "fizz", "fail", "fil", "siz", "troubl", "enjo", "happ", "log"]
    endings = ["", "s", "es", "ies", "sses", "ed", "eed", "ied", "ing", "y", "ly", "ational", "tional", "enci", "anci", "izer", "bli", "ably", "alli",
               "ally", "entli", "eli", "ousli", "ization", "ation", "ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "fully",
               "ogy", "logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement",
               "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti", "ous", "ive", "ize", "e", "ll", "le"]
    irregular = ["sky", "skies", "dying", "lying", "tying", "news", "innings", "inning", "outings", "outing", "cannings", "canning", "howe",
                 "proceed", "exceed", "succeed", "yyyy", "toy", "sayings", "2000s", "ow", "owed", "b2b", "aed", "bing", "eed"]
    return irregular + [stem + ending for stem in stems for ending in endings]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests/golden/text_metrics.json")
    pairs = PAIRS + list(noisy())
    rows = []
    for prediction, reference in pairs:
        row = {"prediction": prediction, "reference": reference, "tokens": Tokenizer13a()(prediction.rstrip())}
        for stemmed in (False, True):
            scores = rouge_scorer.RougeScorer(ROUGE, use_stemmer=stemmed).score(reference, prediction)
            row["stemmed" if stemmed else "plain"] = [scores[name].fmeasure for name in ROUGE]
        row["bleu"] = corpus_bleu([prediction], [[reference]]).score
        row["chrf"] = corpus_chrf([prediction], [[reference]]).score
        rows.append(row)
    predictions, references = [p for p, _ in pairs], [r for _, r in pairs]
    bleu = corpus_bleu(predictions, [references])
    stem = PorterStemmer().stem
    value = {"rows": rows,
             "corpus": {"bleu": bleu.score, "precisions": bleu.precisions, "brevity_penalty": bleu.bp, "length": bleu.sys_len,
                        "reference_length": bleu.ref_len, "chrf": corpus_chrf(predictions, [references]).score},
             "stems": [[word, stem(word)] for word in words()]}
    parser.parse_args().output.write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
