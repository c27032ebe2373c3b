#include "shoal/parallel/tensor/replace.h"

#include <algorithm>
#include <utility>

#include "shoal/parallel/tensor/attention.h"
#include "shoal/parallel/tensor/decoder.h"
#include "shoal/parallel/tensor/feed_forward.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/parallel/tensor/sample_head.h"
#include "shoal/parallel/tensor/vocabulary.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Casts a module to the class that the maker of its kind expects.
template <class Kind>
Kind& as(nn::Module& module) {
  auto* known = dynamic_cast<Kind*>(&module);
  SHOAL_CHECK(known, "{}: a module of kind {} is not the class that the maker of this kind cuts",
              module.path(), module.kind());
  return *known;
}

std::unique_ptr<nn::Module> cut_attention(std::unique_ptr<nn::Module>& original,
                                          const TensorParallel& group, ReplacedParameters&) {
  const auto& config = as<nn::CausalSelfAttention>(*original).config();
  divided(config.heads, group, "heads", original->path());
  auto made = std::make_unique<TensorParallelAttention>(group, config);
  inherit_parameters(*original, *made);
  return made;
}

std::unique_ptr<nn::Module> cut_self_attention(std::unique_ptr<nn::Module>& original,
                                               const TensorParallel& group, ReplacedParameters&) {
  const auto& config = as<nn::SelfAttention>(*original).config();
  divided(config.heads, group, "heads", original->path());
  auto made = std::make_unique<TensorParallelSelfAttention>(group, config);
  inherit_parameters(*original, *made);
  return made;
}

std::unique_ptr<nn::Module> cut_grouped_attention(std::unique_ptr<nn::Module>& original,
                                                  const TensorParallel& group,
                                                  ReplacedParameters&) {
  const auto& config = as<nn::GroupedSelfAttention>(*original).config();
  divided(config.key_heads, group, "key heads", original->path());
  auto made = std::make_unique<TensorParallelGroupedAttention>(group, config);
  inherit_parameters(*original, *made);
  return made;
}

std::unique_ptr<nn::Module> cut_gated_mlp(std::unique_ptr<nn::Module>& original,
                                          const TensorParallel& group, ReplacedParameters&) {
  const auto& config = as<nn::GatedMlp>(*original).config();
  divided(config.inner, group, "inner channels", original->path());
  auto made = std::make_unique<TensorParallelGatedMlp>(group, config);
  inherit_parameters(*original, *made);
  return made;
}

std::unique_ptr<nn::Module> cut_feed_forward(std::unique_ptr<nn::Module>& original,
                                             const TensorParallel& group, ReplacedParameters&) {
  const auto& config = as<nn::FeedForward>(*original).config();
  divided(config.inner, group, "inner channels", original->path());
  auto made = std::make_unique<TensorParallelFeedForward>(group, config);
  inherit_parameters(*original, *made);
  return made;
}

std::unique_ptr<nn::Module> cut_mlp(std::unique_ptr<nn::Module>& original,
                                    const TensorParallel& group, ReplacedParameters&) {
  auto& mlp = as<nn::Mlp>(*original);
  mlp.c_fc.replace(column_parallel(*mlp.c_fc, group));
  mlp.c_proj.replace(row_parallel(*mlp.c_proj, group));
  return nullptr;
}

std::unique_ptr<nn::Module> cut_embedding(std::unique_ptr<nn::Module>& original,
                                          const TensorParallel& group,
                                          ReplacedParameters& parameters) {
  const auto& embedding = as<nn::Embedding>(*original);
  const std::shared_ptr<nn::Parameter>& whole = embedding.weight();
  auto made = std::make_unique<VocabularyParallelEmbedding>(
      group, whole->shape()[0], whole->shape()[1], whole->initializer().std, embedding.padding());
  inherit_parameters(*original, *made);
  parameters.add(whole, made->weight());
  return made;
}

std::unique_ptr<nn::Module> cut_head(std::unique_ptr<nn::Module>& original,
                                     const TensorParallel& group, ReplacedParameters& parameters) {
  auto& head = as<nn::LmHead>(*original);
  const std::shared_ptr<nn::Parameter>& whole = head.weight();
  nn::LmHeadConfig config = head.config();
  config.tied = parameters.part_of(*whole);
  const bool cuts = !config.tied;
  if (cuts) {  // add() below throws if a module that shares the weight was replaced earlier
    config.vocabulary = whole->shape()[0];
    config.channels = whole->shape()[1];
    config.std = whole->initializer().std;
  }
  auto made = std::make_unique<VocabularyParallelHead>(group, config);
  inherit_parameters(*original, *made);
  if (cuts) parameters.add(whole, made->weight());
  return made;
}

// The head is not split. If a rank has a part of the positions, the head gets all of them.
std::unique_ptr<nn::Module> share_samples(std::unique_ptr<nn::Module>& original,
                                          const TensorParallel& group, ReplacedParameters&) {
  if (group.split != ActivationSplit::sequence) return nullptr;
  std::unique_ptr<nn::TaskHead> head(&as<nn::SampleHead>(*original));
  (void)original.release();
  return std::make_unique<SharedSampleHead>(group, std::move(head));
}

void visit(nn::Module& module, const std::function<void(nn::Module&)>& fn) {
  for (const nn::Module::Child& child : module.children()) {
    fn(*child.module);
    visit(*child.module, fn);
  }
}

// Modules that read or create all positions must be replaced if a rank has only a part of them.
void check_positions(nn::Module& root, const std::vector<const nn::Module*>& made) {
  visit(root, [&](nn::Module& module) {
    const bool sees_all = dynamic_cast<nn::AttentionLike*>(&module) ||
                          dynamic_cast<nn::EmbeddingLike*>(&module) ||
                          dynamic_cast<nn::HeadLoss*>(&module);
    if (!sees_all || std::find(made.begin(), made.end(), &module) != made.end()) return;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: a {} has no tensor-parallel form, and under optimize = memory it "
                    "would see a part of the positions",
                    module.path(), module.kind()),
        "register one (TensorParallelRegistry::add; ParallelOptions and TrainerParts take the "
        "registry), or use optimize = speed");
  });
}

}  // namespace

void ReplacedParameters::add(std::shared_ptr<nn::Parameter> whole,
                             std::shared_ptr<nn::Parameter> part) {
  if (part_of(*whole))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is shared and was cut twice", whole->name()),
                "the owner of a tied weight must come before the modules that share it");
  all_.emplace_back(std::move(whole), std::move(part));
}

std::shared_ptr<nn::Parameter> ReplacedParameters::part_of(const nn::Parameter& whole) const {
  for (const auto& [from, to] : all_)
    if (from.get() == &whole) return to;
  return nullptr;
}

TensorParallelRegistry TensorParallelRegistry::defaults() {
  TensorParallelRegistry registry;
  registry.add("CausalSelfAttention", cut_attention);
  registry.add("SelfAttention", cut_self_attention);
  registry.add("GroupedSelfAttention", cut_grouped_attention);
  registry.add("Mlp", cut_mlp);
  registry.add("GatedMlp", cut_gated_mlp);
  registry.add("FeedForward", cut_feed_forward);
  registry.add("Embedding", cut_embedding);
  registry.add("LmHead", cut_head);
  registry.add("SampleHead", share_samples);
  return registry;
}

void TensorParallelRegistry::add(const std::string& kind, TensorParallelMaker maker) {
  makers_[kind] = std::move(maker);
}
void TensorParallelRegistry::remove(const std::string& kind) { makers_.erase(kind); }
const TensorParallelMaker* TensorParallelRegistry::find(std::string_view kind) const {
  const auto found = makers_.find(kind);
  return found == makers_.end() ? nullptr : &found->second;
}

void apply_tensor_parallelism(nn::Module& root, const TensorParallel& group,
                              const TensorParallelRegistry& registry) {
  if (group.size() == 1) return;
  ReplacedParameters parameters;
  std::vector<const nn::Module*> made;
  root.replace_modules([&](std::unique_ptr<nn::Module>& child) -> std::unique_ptr<nn::Module> {
    const TensorParallelMaker* maker = registry.find(child->kind());
    if (!maker) return nullptr;
    std::unique_ptr<nn::Module> replacement = (*maker)(child, group, parameters);
    made.push_back(replacement ? replacement.get() : child.get());
    return replacement;
  });
  root.name_tree(root.path());
  for (nn::Parameter* parameter : root.parameters())
    if (parameters.part_of(*parameter))
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} was cut, but a module that stayed whole shares it", parameter->name()),
          "register a maker for that module too, or for neither");
  if (group.split == ActivationSplit::sequence) check_positions(root, made);
}

}  // namespace shoal::parallel
