"""GPT-2 by Hugging Face's Trainer. It needs only transformers and accelerate, not what their example scripts need.

With --do_predict it also writes predictions.json: for each sample in order, the largest logit of each token and the
labels. rng_files.txt names the ranks that have written a file of random states, and these files.
"""
import dataclasses
import json
import os
import pathlib

import torch
import transformers


@dataclasses.dataclass
class Inputs:
    model_name_or_path: str = "gpt2"
    train_file: str = "text-train.txt"
    block_size: int = 32


def samples(tokenizer, file):
    tokens = tokenizer(pathlib.Path(file).read_text())["input_ids"]
    parts = [tokens[first:first + inputs.block_size]
             for first in range(0, len(tokens) - inputs.block_size, inputs.block_size)]
    # The first label is for no output. If it counted, the Trainer's mean would not be the model's.
    return [{"input_ids": part, "labels": [-100, *part[1:]]} for part in parts]


def recording(save, folder):
    """torch.save(), which also notes the rank where it writes random states."""
    def recorded(value, file, *arguments, **named):
        save(value, file, *arguments, **named)
        if "rng_state" in str(file):
            with open(folder / "rng_files.txt", "a") as notes:
                notes.write(f"{os.environ.get('RANK', 0)} {pathlib.Path(file).name}\n")
    return recorded


parser = transformers.HfArgumentParser((Inputs, transformers.TrainingArguments))
inputs, arguments = parser.parse_args_into_dataclasses()
folder = pathlib.Path(arguments.output_dir)
torch.save = recording(torch.save, folder)
transformers.set_seed(arguments.seed)
tokenizer = transformers.AutoTokenizer.from_pretrained(inputs.model_name_or_path)
trainer = transformers.Trainer(
    model=transformers.AutoModelForCausalLM.from_pretrained(inputs.model_name_or_path), args=arguments,
    data_collator=transformers.default_data_collator, train_dataset=samples(tokenizer, inputs.train_file),
    eval_dataset=samples(tokenizer, "text-validation.txt")[:12],
    preprocess_logits_for_metrics=lambda logits, labels: logits.amax(-1))
result = trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
trainer.save_model()
trainer.save_state()
trainer.save_metrics("train", result.metrics)
trainer.save_metrics("eval", trainer.evaluate())
if arguments.do_predict:
    found = trainer.predict(trainer.eval_dataset)
    if trainer.is_world_process_zero():
        (folder / "predictions.json").write_text(json.dumps([found.predictions.tolist(), found.label_ids.tolist()]))
