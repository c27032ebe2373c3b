// Data-parallel GPT-2 on a text file: mpirun -n 4 train_gpt2 --train_file corpus.txt --tokenizer
// DIR
#include <shoal/shoal.h>

int main(int argc, char** argv) {
  const std::vector<shoal::Option> options = {
      {"train_file", "", "a .txt, .json or .jsonl file"},
      {"tokenizer", "", "a directory with a Hugging Face tokenizer"},
      {"output_dir", "gpt2-out", "the model that transformers opens"},
      {"model", "n_layer=2,n_head=4,n_embd=64,n_positions=64", "changes to GPT-2's configuration"},
      {"steps", "100", "number of updates"}};
  return shoal::run(argc, argv, options, [](shoal::Job& job) {
    const std::int64_t steps = job.integer("steps");
    const shoal::Text text(job, job.text("train_file"), job.text("tokenizer"), {.block_size = 64});
    // Every rank has the whole model. Gradients are summed over the ranks during backward.
    shoal::Model model(job, shoal::causal_lm("gpt2", job.text("model"), text.tokenizer()));
    shoal::Optimizer optimizer(model, {.weight_decay = 0.01});
    shoal::Batches batches(model, text.blocks(), {.size = 8});
    const auto rate = shoal::learning_rates("cosine", 3e-3, steps / 10, steps);

    for (std::int64_t step = 0; step < steps; ++step) {
      const double loss = model.train(batches.next());  // over the tokens of all ranks
      const shoal::Update update = optimizer.step(rate(step), 1.0);
      if (step % 10 == 0 || step + 1 == steps)
        job.print("step {:4}  loss {:.4f}  gradient norm {:.3f}\n", step, loss,
                  update.gradient_norm);
    }
    model.save_pretrained(job.text("output_dir"));
    job.print("saved in {}\n", job.text("output_dir"));
  });
}
