#include "shoal/train/trainer/same_adapters.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/ranges.h>

#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

using Names = std::vector<std::string>;

Names adapted_paths(const nn::Module& model) {
  Names paths;
  for (const nn::LinearLike* layer : nn::adapted_layers(model)) paths.push_back(layer->path());
  return paths;
}

// "q_proj, v_proj": the names of `some` that `others` lack; "none" if there are none. Both are
// sorted.
std::string only_in(const Names& some, const Names& others) {
  Names own;
  std::ranges::set_difference(some, others, std::back_inserter(own));
  return own.empty() ? "none" : shortened(fmt::format("{}", fmt::join(own, ", ")));
}

}  // namespace

std::vector<std::string> check_same_adapters(const std::string& directory,
                                             const nn::Module& model) {
  const Names here = adapted_paths(model);
  const bool there = nn::is_adapter(directory);
  if (here.empty() && !there) return {};
  if (!there)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot go on from {}: it has no adapters, and this run trains {}",
                            directory, here.size()),
                "leave lora_r out, or begin a new run with --model_name_or_path " + directory);
  const nn::LoraOptions saved = nn::read_adapter_config(directory);
  if (here.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot go on from {}: it has adapters, and this run trains the whole "
                            "model",
                            directory),
                fmt::format("give --lora_r {}", saved.r));
  const nn::LoraOptions& now = *nn::adapted_layers(model).front()->lora()->config().given;
  Names others, notes;
  const auto compare = [&](const char* name, const auto& was, const auto& is, Names& differing) {
    if (was != is)
      differing.push_back(fmt::format("{} is {} in {} and {} here", name, was, directory, is));
  };
  compare("lora_r", saved.r, now.r, others);
  compare("lora_alpha", saved.lora_alpha, now.lora_alpha, others);
  compare("use_rslora", saved.use_rslora, now.use_rslora, others);
  Names was = saved.target_modules, is = here;
  std::ranges::sort(was);
  std::ranges::sort(is);
  if (was != is)
    others.push_back(fmt::format("layers adapted only in {}: {}; only here: {}", directory,
                                 only_in(was, is), only_in(is, was)));
  compare("lora_dropout", saved.lora_dropout, now.lora_dropout, notes);
  compare("the adapted model", saved.base_model_name_or_path, now.base_model_name_or_path, notes);
  if (others.empty()) return notes;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("cannot go on from a checkpoint of other adapters: {}", fmt::join(others, "; ")),
      "give the lora options of that run, or begin a new one");
}

}  // namespace shoal
