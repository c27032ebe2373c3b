// Measures the gain of packing for a causal language model with short documents. Compares the same
// documents packed into blocks, padded in batches, and end to end, where each sees the earlier
// ones. A round runs forward and backward of all documents in each form, by turns. Prints one JSON
// line per form.
#include "shoal/train/data/packing.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "harness/row.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/train/tasks/causal_lm.h"

namespace shoal::bench {
namespace {

struct Arguments {
  std::int64_t documents = 48, block = 512, layers = 12, width = 768, batch = 4;
  double mean = 100, spread = 0.8;  // of log-normal lengths
  std::string dtype = "bf16";
  int rounds = 5, threads = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Document = std::vector<std::int32_t>;

// Deterministic.
std::vector<Document> make_documents(const Arguments& a, std::int32_t vocabulary) {
  std::vector<Document> all;
  std::uint64_t state = 1;
  const auto uniform = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (static_cast<double>(state >> 33U) + 0.5) * 0x1p-31;
  };
  for (std::int64_t i = 0; i < a.documents; ++i) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307 * uniform());
    const double length = a.mean * std::exp(a.spread * normal - a.spread * a.spread / 2);
    Document& document = all.emplace_back();
    document.resize(static_cast<std::size_t>(
        std::clamp(std::llround(length), 2LL, static_cast<long long>(a.block))));
    for (std::int32_t& id : document) id = static_cast<std::int32_t>(uniform() * vocabulary);
  }
  return all;
}

// Blocks from best-fit decreasing, padded to full length.
std::vector<Sample> packed(const std::vector<Document>& documents, std::int64_t block) {
  std::vector<std::int64_t> lengths;
  for (const Document& document : documents) lengths.push_back(std::ssize(document));
  const std::vector<std::int64_t> block_of = best_fit_decreasing(lengths, block);
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto own = static_cast<std::size_t>(block_of[i]);
    if (own >= samples.size()) samples.resize(own + 1);
    Sample& sample = samples[own];
    sample.sequences.push_back(static_cast<std::int32_t>(sample.input_ids.size()));
    sample.input_ids.insert(sample.input_ids.end(), documents[i].begin(), documents[i].end());
    sample.labels.push_back(kIgnoreLabel);
    sample.labels.insert(sample.labels.end(), documents[i].begin() + 1, documents[i].end());
  }
  for (Sample& sample : samples) {
    if (std::ssize(sample.input_ids) < block)
      sample.sequences.push_back(static_cast<std::int32_t>(sample.input_ids.size()));
    sample.input_ids.resize(static_cast<std::size_t>(block), 0);
    sample.labels.resize(static_cast<std::size_t>(block), kIgnoreLabel);
  }
  return samples;
}

struct Form {
  std::string name;
  std::vector<Batch> batches = {};
  std::int64_t positions = 0;
  std::vector<double> seconds = {};
};

// Batches with about as many positions as `batch` blocks.
Form form_of(std::string name, const std::vector<Sample>& samples, const Arguments& a,
             MemoryResource& memory) {
  Form form{.name = std::move(name)};
  const PaddingCollator collator(0, samples[0].sequences.empty() ? 32 : 1);
  std::vector<Sample> batch;
  std::int64_t longest = 0;
  const auto close = [&] {
    form.batches.push_back(collator.collate(batch, memory));
    form.positions += form.batches.back().input_ids.count();
    batch.clear();
    longest = 0;
  };
  for (const Sample& sample : samples) {
    const std::int64_t length = std::max(longest, std::ssize(sample.input_ids));
    if (!batch.empty() && (std::ssize(batch) + 1) * length > a.batch * a.block) close();
    longest = std::max(longest, std::ssize(sample.input_ids));
    batch.push_back(sample);
  }
  close();
  return form;
}

class Training {
 public:
  Training(const Arguments& a, DType dtype)
      : host_(make_host_memory()),
        pool_(*host_),
        kernels_(kernels::make_cpu_kernels({.threads = a.threads, .memory = &pool_})),
        context_(*kernels_, pool_, dispatcher_),
        task_(config(a)) {
    context_.random.state = &state_;
    task_.module().materialize(context_, dtype);
    nn::allocate_gradients(context_, task_.module().parameters());
  }
  static nn::DecoderConfig config(const Arguments& a) {
    nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
    config.num_hidden_layers = a.layers;
    config.hidden_size = a.width;
    config.num_attention_heads = a.width / 64;
    config.embedding_dropout = config.attention_dropout = config.hidden_dropout = 0;
    return config;
  }
  // Sum of the loss, and number of targets.
  std::pair<double, std::int64_t> step(const Form& form) {
    for (nn::Parameter* parameter : task_.module().parameters()) parameter->clear_gradient();
    double loss = 0;
    std::int64_t targets = 0;
    for (const Batch& batch : form.batches) {
      const nn::ChainInput input = task_.chain_input(batch, *host_);
      nn::Tape tape;
      context_.tape = &tape;
      const nn::LossOutput out = task_.loss(context_, input);
      context_.tape = nullptr;
      loss += static_cast<double>(context_.read(out.loss_sum));
      targets += out.targets;
      tape.backward(context_, out.loss);
    }
    return {loss, targets};
  }
  MemoryResource& memory() { return *host_; }

 private:
  std::unique_ptr<MemoryResource> host_;
  PoolMemory pool_;
  std::unique_ptr<kernels::Kernels> kernels_;
  nn::DirectDispatcher dispatcher_;
  nn::Context context_;
  kernels::StepState state_;
  CausalLmTask task_;
};

void run(Arguments a) {
  if (a.threads == 0) a.threads = available_cores();
  Training training(a, a.dtype == "bf16" ? DType::bf16 : DType::f32);
  const std::vector<Document> documents =
      make_documents(a, static_cast<std::int32_t>(Training::config(a).vocab_size));
  std::int64_t tokens = 0;
  std::vector<Sample> alone, blocks = packed(documents, a.block), unbounded = blocks;
  for (const Document& document : documents) {
    tokens += std::ssize(document);
    alone.push_back({.input_ids = document});
  }
  for (Sample& sample : unbounded) sample.sequences.clear();
  std::vector<Form> forms;
  forms.push_back(form_of("packed", blocks, a, training.memory()));
  forms.push_back(form_of("padded", alone, a, training.memory()));
  forms.push_back(form_of("end to end", unbounded, a, training.memory()));
  const auto [loss, targets] = training.step(forms[0]);
  const auto [padded_loss, padded_targets] = training.step(forms[1]);
  training.step(forms[2]);
  const double apart = std::abs(loss / padded_loss - 1);
  SHOAL_CHECK(targets == padded_targets && apart < 1e-2,
              "packed: {} targets and a loss of {}; padded: {} and {}", targets, loss,
              padded_targets, padded_loss);
  for (int round = 0; round < a.rounds; ++round)
    for (Form& form : forms) {
      const double begin = now();
      training.step(form);
      form.seconds.push_back(now() - begin);
    }
  for (const Form& form : forms) {
    std::vector<double> ratios;  // by round
    for (std::size_t i = 0; i < form.seconds.size(); ++i)
      ratios.push_back(forms[1].seconds[i] / form.seconds[i]);
    const nlohmann::ordered_json row = {
        {"operation", "packing " + form.name},
        {"dtype", a.dtype},
        {"documents", a.documents},
        {"tokens", tokens},
        {"block", a.block},
        {"padding_share", 1 - static_cast<double>(tokens) / static_cast<double>(form.positions)},
        {"p50_seconds", percentile(form.seconds, 0.5)},
        {"tokens_per_second", static_cast<double>(tokens) / percentile(form.seconds, 0.5)},
        {"of_padded", percentile(ratios, 0.5)},
        {"loss", loss / static_cast<double>(targets)},
        {"verified", apart},
        {"threads", a.threads},
        {"machine", machine()},
        {"commit", commit()}};
    std::cout << row.dump() << std::endl;
  }
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);  // as `shoal train` does
  CLI::App app{"A causal language model's step of short documents, packed beside padded."};
  shoal::bench::Arguments a;
  app.add_option("--documents", a.documents)->check(CLI::Range(1, 1 << 20));
  app.add_option("--mean", a.mean, "tokens of a document")->check(CLI::PositiveNumber);
  app.add_option("--spread", a.spread, "of the logarithm of its length")
      ->check(CLI::Range(0.0, 4.0));
  app.add_option("--block", a.block, "tokens of a block")->check(CLI::Range(2, 1024));
  app.add_option("--batch", a.batch, "blocks' worth of positions at a time")
      ->check(CLI::Range(1, 1024));
  app.add_option("--layers", a.layers)->check(CLI::Range(1, 100));
  app.add_option("--width", a.width, "a multiple of 64")->check(CLI::Range(64, 8192));
  app.add_option("--dtype", a.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--rounds", a.rounds, "medians of so many, turn by turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", a.threads, "0: available cores");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(a);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal_bench_packing: %s\n", error.what());
    return 1;
  }
}
