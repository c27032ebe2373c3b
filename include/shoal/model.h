// A model on a mesh of ranks, its optimizer, and the batches that train it.
//
//   shoal::Model model(job, shoal::causal_lm("gpt2", "n_layer=4", text.tokenizer()), plan);
//   shoal::Optimizer optimizer(model, {.weight_decay = 0.1});
//   shoal::Batches batches(model, text.blocks(), {.size = 8});
//   const auto rate = shoal::learning_rates("cosine", 1e-3, 100, 1000);
//   const double loss = model.train(batches.next());
//   optimizer.step(rate(0));  // the learning rate of step 0
//
// With any plan, a step computes what one rank would compute from the whole batch. Every rank
// makes the same calls in the same order. All calls block. If a rank is lost, they throw peer_lost,
// timeout or aborted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/run.h"
#include "shoal/train/data/batch.h"

namespace shoal {

class Task;
class Tokenizer;
using parallel::ParallelPlan;

// A decoder that predicts the next token. `type_or_directory`: a Hugging Face model_type ("gpt2",
// "llama") for a new model with the tokenizer's vocabulary, or a directory with a config.json
// (Model::load_pretrained() reads its weights). `overrides` change a new model's configuration:
// "n_layer=4,n_head=4". Throws invalid_argument, not_found.
std::shared_ptr<Task> causal_lm(const std::string& type_or_directory,
                                const std::string& overrides = {},
                                std::shared_ptr<const Tokenizer> tokenizer = {});

// A model over all ranks of the job. The caller owns it and calls it from one thread; it must
// outlive its Optimizer and Batches.
class Model {
 public:
  // Builds this rank's part of the model: its pipeline stages and its tensor-parallel parts.
  // Weights are drawn from `seed`. Throws invalid_argument if the plan does not fit the model or
  // the number of ranks. `job` must outlive the model.
  Model(Job& job, std::shared_ptr<Task> task, const ParallelPlan& plan = {},
        std::uint64_t seed = 42);
  // A custom model. Its head receives Batch::labels as ChainInput::targets.
  Model(Job& job, std::unique_ptr<nn::Chain> chain, const ParallelPlan& plan = {},
        std::uint64_t seed = 42);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Forward and backward of this replica's batch, and the sum of gradients over all ranks. Returns
  // the mean loss over the targets of all ranks. Rows must be a multiple of the plan's microbatches
  // (and of its tensor-parallel ranks, unless prescaled_batch is set), else throws
  // invalid_argument.
  double train(const Batch& batch);
  // Returns the mean loss. Applies no dropout and computes no gradients.
  double evaluate(const Batch& batch);
  // Lines that describe mesh, stages and schedule.
  std::string describe() const;

  // Reads weights from a Hugging Face directory, or from a checkpoint written under any plan.
  // Throws not_found, invalid_argument, io. Call before Optimizer::resume().
  void load_pretrained(const std::string& directory);
  // Writes config.json, weights and tokenizer in the format of transformers. Replaces existing
  // files. Throws io, or unavailable for a custom model.
  void save_pretrained(const std::string& directory);

  struct Parts;
  Parts& parts() { return *parts_; }

 private:
  std::unique_ptr<Parts> parts_;
};

// The learning rate of each zero-based step, equal to transformers.get_scheduler(): "cosine",
// "linear", "constant_with_warmup", ... Throws invalid_argument for an unknown kind, listing the
// known ones.
std::function<double(std::int64_t step)> learning_rates(const std::string& kind, double highest,
                                                        std::int64_t warmup_steps,
                                                        std::int64_t total_steps);

// AdamW (Loshchilov and Hutter, 2019): torch.optim.AdamW's defaults, except Hugging Face's decay
// of 0.
struct AdamW {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

struct Update {              // result of Optimizer::step()
  double gradient_norm = 0;  // over the whole model, before clipping
  bool skipped = false;      // the norm was not finite: nothing was changed
};

// Updates the f32 values of a model. Create one per model. The model must outlive it.
class Optimizer {
 public:
  explicit Optimizer(Model& model, const AdamW& rule = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Call after Model::train(). `max_norm` clips the gradients; 0: no clipping.
  Update step(double learning_rate, double max_norm = 0);

  // Writes `directory`/checkpoint-<step>: each rank writes the parts that it holds. The checkpoint
  // appears under its name when it is complete. Throws io.
  void save(const std::string& directory, std::int64_t step);
  // Loads the newest complete checkpoint of `directory`, written under any plan, into model and
  // optimizer. Returns its step; 0 if there is none. Throws corrupt_data, io.
  std::int64_t resume(const std::string& directory);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Options of Batches.
struct BatchOptions {
  std::int64_t size = 8;    // rows per replica and step
  std::uint64_t seed = 42;  // seeds the row order, which changes every epoch
  bool shuffle = true;
  LabelsOf labels = LabelsOf::positions;
};

// Endless batches of a dataset. Each replica gets its own rows.
class Batches {
 public:
  // Throws invalid_argument if the dataset has fewer rows than one batch of all replicas.
  Batches(Model& model, std::shared_ptr<const Dataset> dataset, const BatchOptions& options = {});
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // Returns the next batch, in host memory. Blocks until it is ready.
  Batch next();
  // The following next() returns the batch of this zero-based step.
  void seek(std::int64_t step);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shoal
