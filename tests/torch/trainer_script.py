"""GPT-2 by Hugging Face's Trainer. It needs only transformers and accelerate, not what their example scripts need."""
import pathlib

import transformers

LENGTH = 32


def samples(tokenizer, file):
    tokens = tokenizer(pathlib.Path(file).read_text())["input_ids"]
    parts = [tokens[first:first + LENGTH] for first in range(0, len(tokens) - LENGTH, LENGTH)]
    return [{"input_ids": part, "labels": part} for part in parts]


(arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()
transformers.set_seed(arguments.seed)
tokenizer = transformers.AutoTokenizer.from_pretrained("gpt2")
trainer = transformers.Trainer(
    model=transformers.AutoModelForCausalLM.from_pretrained("gpt2"), args=arguments,
    data_collator=transformers.default_data_collator, train_dataset=samples(tokenizer, "text-train.txt"),
    eval_dataset=samples(tokenizer, "text-validation.txt")[:12])
result = trainer.train()
trainer.save_model()
trainer.save_state()
trainer.save_metrics("train", result.metrics)
trainer.save_metrics("eval", trainer.evaluate())
