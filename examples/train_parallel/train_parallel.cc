// GPT-2 on a mesh of data, pipeline and tensor parallelism with sharded state:
//   mpirun -n 8 train_parallel --pipeline 2 --tensor 2 --sharding 1 --output_dir parts
#include <shoal/shoal.h>

// Sample i counts up from its own start; the model learns to count.
class Counting final : public shoal::Dataset {
 public:
  std::int64_t size() const override { return 4096; }
  shoal::Sample get(std::int64_t index) const override {
    shoal::Sample sample;
    for (std::int64_t t = 0; t < 32; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((13 * index + t) % 64));
    return sample;
  }
};

int main(int argc, char** argv) {
  const std::vector<shoal::Option> options = {
      {"pipeline", "1", "ranks of a pipeline"},
      {"tensor", "1", "ranks that share each layer"},
      {"sharding", "0", "1: optimizer state, 2: gradients too, 3: parameters too"},
      {"microbatches", "2", "pieces of a batch"},
      {"output_dir", "parallel-out", "checkpoints; a later run continues the newest one"},
      {"steps", "20", "updates of this run"}};
  return shoal::run(argc, argv, options, [](shoal::Job& job) {
    shoal::ParallelPlan plan;
    plan.mesh.pipeline = static_cast<int>(job.integer("pipeline"));
    plan.mesh.tensor = static_cast<int>(job.integer("tensor"));
    plan.pipeline.schedule = shoal::parallel::ScheduleKind::one_f_one_b;
    plan.pipeline.microbatches = static_cast<int>(job.integer("microbatches"));
    plan.sharding.level = static_cast<int>(job.integer("sharding"));
    plan.activations.checkpoint_group = 1;  // recompute each block in its backward

    const char* const config = "vocab_size=64,n_layer=6,n_head=4,n_embd=64,n_positions=32";
    shoal::Model model(job, shoal::causal_lm("gpt2", config), plan);
    job.print("{}", model.describe());
    shoal::Optimizer optimizer(model);
    // 16 rows a step, whatever the number of replicas.
    const std::int64_t replicas = job.ranks() / (plan.mesh.pipeline * plan.mesh.tensor);
    shoal::Batches batches(model, std::make_shared<Counting>(), {.size = 16 / replicas});

    // A checkpoint can be resumed under any plan.
    const std::int64_t first = optimizer.resume(job.text("output_dir"));
    const std::int64_t last = first + job.integer("steps");
    batches.seek(first);
    for (std::int64_t step = first; step < last; ++step) {
      const double loss = model.train(batches.next());
      const shoal::Update update = optimizer.step(3e-3, 1.0);
      if (step % 5 == 0 || step + 1 == last)
        job.print("step {:3}  loss {:.5f}  gradient norm {:.4f}\n", step, loss,
                  update.gradient_norm);
    }
    optimizer.save(job.text("output_dir"), last);
  });
}
