// Runs Shoal's training step, its bound and PyTorch's step by turns (README.md).
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "server_process.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string dtype = "bf16", peers, variants, model = "gpt2", lengths;
  std::int64_t batch = 4, length = 512;
  double dropout = 0;
  int threads = 2, rounds = 5, warmup = 2;
};

struct Contestant {
  std::string name;
  std::unique_ptr<ServerProcess> server;
  std::vector<double> seconds, rates;
  double peak_rss = 0;
  double attention_share = 0;  // relative to the bound's operations (workload.h)
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) words.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

std::vector<Contestant> start(const Arguments& arguments, const std::filesystem::path& here) {
  std::vector<Contestant> contestants;
  const auto add = [&](std::string name, std::vector<std::string> command) {
    for (const auto& [option, value] :
         {std::pair{"--batch", arguments.batch}, std::pair{"--length", arguments.length},
          std::pair{"--threads", std::int64_t{arguments.threads}},
          std::pair{"--warmup", std::int64_t{arguments.warmup}}}) {
      command.emplace_back(option);
      command.push_back(std::to_string(value));
    }
    command.insert(command.end(), {"--model", arguments.model});
    command.insert(command.end(), {"--dropout", fmt::format("{}", arguments.dropout)});
    if (!arguments.lengths.empty()) command.insert(command.end(), {"--lengths", arguments.lengths});
    auto server = std::make_unique<ServerProcess>(name, command);
    const ordered_json ready = server->answer();  // sequentially, so that warm-up is not disturbed
    std::cerr << name << ' ' << ready.dump() << std::endl;
    contestants.push_back({std::move(name), std::move(server), {}, {}, 0, 0});
  };
  const std::string step = (here / "shoal_bench_training_step").string();
  add("shoal " + arguments.dtype, {step, arguments.dtype});
  add("shoal " + arguments.dtype + "-matmul", {step, arguments.dtype + "-matmul"});
  if (!arguments.lengths.empty())
    add("shoal " + arguments.dtype + " padded", {step, arguments.dtype, "--padded"});
  if (arguments.peers.empty()) return contestants;
  const bool gpt2 = arguments.model.starts_with("gpt2");
  SHOAL_CHECK(!gpt2 || (arguments.model == "gpt2" && arguments.dropout == 0),
              "the PyTorch peer runs gpt2 without dropout, not {} with {}", arguments.model,
              arguments.dropout);
  const bool decoder = arguments.model.starts_with("llama") || arguments.model.starts_with("qwen");
  const bool both = arguments.model == "t5-base" || arguments.model == "bart-base";
  std::string variants = arguments.variants;
  if (variants.empty())
    variants = arguments.dtype == "f32"
                   ? "f32-eager,f32-compile"
                   : "bf16-autocast-eager,bf16-autocast-compile,bf16-pure-eager,bf16-pure-compile";
  for (const std::string& variant : split(variants))
    add("pytorch " + variant, {arguments.peers,
                               fmt::format("{}/bench/peers/pytorch_{}.py", SHOAL_SOURCE_DIR,
                                           gpt2      ? "gpt2"
                                           : decoder ? "decoder"
                                           : both    ? "encoder_decoder"
                                                     : "encoder"),
                               variant});
  return contestants;
}

void report(const std::vector<Contestant>& contestants) {
  const double ours = median(contestants[0].seconds), bound = median(contestants[1].seconds);
  // Assumes that attention's products run at the rate of the linear layers.
  const double with_attention = bound * (1 + contestants[1].attention_share);
  double best = 0;
  for (std::size_t i = 2; i < contestants.size(); ++i) {
    if (!contestants[i].name.starts_with("pytorch")) continue;
    const double seconds = median(contestants[i].seconds);
    best = best == 0 ? seconds : std::min(best, seconds);
  }
  std::printf("%-32s %10s %10s %12s %12s %10s\n", "contestant", "s/step", "tokens/s", "of bound",
              "shoal is", "peak GB");
  for (const Contestant& contestant : contestants) {
    const double seconds = median(contestant.seconds);
    std::printf("%-32s %10.3f %10.0f %11.1f%% %11.2fx %10.2f\n", contestant.name.c_str(), seconds,
                median(contestant.rates), 100 * bound / seconds, seconds / ours,
                contestant.peak_rss / 1e9);
  }
  std::printf("with attention's products at that rate the bound is %.3f s, Shoal at %.1f%% of it\n",
              with_attention, 100 * with_attention / ours);
  for (const Contestant& contestant : contestants)
    std::cout << ordered_json{{"name", contestant.name},
                              {"rounds", contestant.seconds.size()},
                              {"median_step_seconds", median(contestant.seconds)},
                              {"median_tokens_per_second", median(contestant.rates)},
                              {"peak_rss_bytes", contestant.peak_rss},
                              {"fraction_of_bound", bound / median(contestant.seconds)},
                              {"shoal_is_times_as_fast", median(contestant.seconds) / ours}}
                     .dump()
              << '\n';
  ordered_json verdict{{"summary", "shoal"},
                       {"fraction_of_bound", bound / ours},
                       {"fraction_of_bound_with_attention", with_attention / ours}};
  if (best > 0) verdict["times_as_fast_as_best_peer"] = best / ours;
  std::cout << verdict.dump() << std::endl;
}

int run(const Arguments& arguments) {
  const auto here = std::filesystem::path(canonical_path("/proc/self/exe")).parent_path();
  std::vector<Contestant> contestants = start(arguments, here);
  for (int round = 0; round < arguments.rounds; ++round)
    for (Contestant& contestant : contestants) {
      ordered_json row{{"name", contestant.name}, {"round", round}};
      row.update(contestant.server->round());
      std::cout << row.dump() << std::endl;
      contestant.seconds.push_back(row["step_seconds"]);
      contestant.rates.push_back(row["tokens_per_second"]);
      contestant.attention_share = field_or(row, "attention_share", 0.0, "a row");
      contestant.peak_rss = std::max(contestant.peak_rss, row["peak_rss_bytes"].get<double>());
    }
  report(contestants);
  return 0;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Arguments arguments;
  CLI::App app("Training steps: Shoal, its matmul-only bound and PyTorch, interleaved");
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--peers", arguments.peers, "a python with torch; none: Shoal alone");
  app.add_option("--variants", arguments.variants, "PyTorch's, by commas; none: all of the dtype");
  app.add_option("--model", arguments.model,
                 "gpt2, bert-base-classification, bert-base-answers, albert-base-masked, ...");
  app.add_option("--dropout", arguments.dropout, "all of the model's");
  app.add_option("--lengths", arguments.lengths,
                 "a file of samples' lengths, a batch a line (bench/peers/sample_lengths.py)");
  app.add_option("--batch", arguments.batch);
  app.add_option("--length", arguments.length);
  app.add_option("--threads", arguments.threads);
  app.add_option("--rounds", arguments.rounds)->check(CLI::PositiveNumber);
  app.add_option("--warmup", arguments.warmup);
  CLI11_PARSE(app, argc, argv);
  try {
    return shoal::bench::run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal_bench_train: %s\n", error.what());
    return 1;
  }
}
