#include "rig.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <tuple>

#include "support/one_core.h"

#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/watch.h"
#include "shoal/nn/capture/deferred_results.h"
#include "shoal/nn/layers/lora.h"

namespace shoal::parallel {

namespace {
std::unique_ptr<nn::Chain> make_whole_model(const Task& task) {
  if (is_encoder_decoder(task.model))
    return std::make_unique<nn::EncoderDecoder>(tiny_encoder_decoder(task));
  if (task.model == Model::gpt2) return std::make_unique<nn::CausalLm>(tiny(task));
  if (task.model == Model::gpt_neox) return std::make_unique<nn::CausalLm>(tiny_neox(task));
  if (is_gemma(task.model)) return std::make_unique<nn::CausalLm>(tiny_gemma(task));
  if (task.model != Model::bert) return std::make_unique<nn::CausalLm>(tiny_llama(task));
  return std::make_unique<nn::Encoder>(tiny_encoder("bert", task.heads, kUnits - 2),
                                       nn::EncoderTask::masked_lm);
}
}  // namespace

std::unique_ptr<nn::Chain> make_model(const Task& task) {
  std::unique_ptr<nn::Chain> chain = make_whole_model(task);
  if (task.lora)
    nn::add_lora(*chain,
                 {.r = 3, .lora_alpha = 48, .lora_dropout = 0.1, .target_modules = {"all-linear"}});
  return chain;
}

nn::ChainInput encoder_input(Rank& rank, const nn::EncoderConfig& config, nn::EncoderTask task,
                             int step, int first, int rows, int length) {
  nn::ChainInput input;
  input.ids = rank.rows(step, first, rows, false, length);
  input.key_mask = rank.input({rows, length}, DType::u8);
  std::vector<std::int32_t> types, classes, answers;
  for (int row = 0; row < rows; ++row) {
    for (int t = 0; t < length; ++t) {
      input.key_mask.data<std::uint8_t>()[row * length + t] = t < 4 + (first + row) % 13 ? 1 : 0;
      types.push_back(t >= 5 ? 1 : 0);
    }
    classes.push_back((first + row) % 3 == 0 ? 1 : 0);
    answers.insert(answers.end(), {(first + row) % 3, 3 + (first + row) % 5});
  }
  if (config.type_vocab_size > 1) input.token_types = rank.ids({rows, length}, types);
  if (task == nn::EncoderTask::masked_lm)
    input.targets = rank.rows(step, first, rows, true, length);
  else if (task == nn::EncoderTask::question_answering)
    input.targets = rank.ids({rows, 2}, answers);
  else
    input.targets = rank.ids({rows}, classes);
  return input;
}

std::vector<std::size_t> places_of(const nn::Parameter& parameter) {
  std::vector<std::size_t> places(static_cast<std::size_t>(parameter.shape().count()));
  const Shape inner = contiguous_strides(parameter.shape());
  const Shape outer = contiguous_strides(parameter.whole_shape());
  for (const nn::ParameterPiece& piece : parameter.pieces())
    for (std::int64_t i = 0; i < piece.sizes.count(); ++i) {
      std::int64_t rest = i, from = 0, to = 0;
      for (int dim = piece.sizes.rank(); dim-- > 0;) {
        const std::int64_t at = rest % piece.sizes[dim];
        rest /= piece.sizes[dim];
        from += (piece.local[dim] + at) * inner[dim];
        to += (piece.whole[dim] + at) * outer[dim];
      }
      places[static_cast<std::size_t>(from)] = static_cast<std::size_t>(to);
    }
  return places;
}

std::int64_t sum_over_samples(ProcessMesh& mesh, const ParallelModel& model, std::int64_t value) {
  collectives::Communicator& group = model.batch_parts() > 1 ? mesh.dp() : mesh.rdp();
  if (group.size() > 1)
    group.host().all_reduce(&value, &value, 1, DType::i64, collectives::ReduceOp::sum)->wait();
  return value;
}

namespace {

std::string name_of(const StateRun& run) {
  return (run.state.name.empty() ? "" : run.state.name + "/") + run.parameter->name();
}

// For each element of the run, its index in the whole tensor.
std::vector<std::size_t> places_in(const StateRun& run) {
  std::vector<std::size_t> places(static_cast<std::size_t>(run.tensor.count()));
  if (run.state.mean_over > 0) {  // whole
    std::iota(places.begin(), places.end(), std::size_t{0});
    return places;
  }
  const std::vector<std::size_t> all = places_of(*run.parameter);
  std::copy_n(all.begin() + run.first, places.size(), places.begin());
  return places;
}

}  // namespace

void collect(const StateRun& run, Whole& into) {
  const Shape& whole_parameter = run.parameter->whole_shape();
  const auto count = static_cast<std::size_t>(state_shape(run.state, whole_parameter).count());
  std::vector<double>& whole = into.values[name_of(run)];
  std::vector<int>& writers = into.writers[name_of(run)];
  whole.resize(count);
  writers.resize(count);
  const std::vector<std::size_t> places = places_in(run);
  std::vector<float> values;
  if (run.tensor.dtype() == DType::bf16)
    for (const bfloat16 value : testing::values_of<bfloat16>(run.tensor))
      values.push_back(static_cast<float>(value));
  else
    values = testing::values_of<float>(run.tensor);
  for (std::size_t i = 0; i < values.size(); ++i) {
    whole[places[i]] = static_cast<double>(values[i]);
    ++writers[places[i]];
  }
}

void collect(const nn::Parameter& parameter, std::int64_t first, const Tensor& run, Whole& into) {
  collect({.parameter = &parameter, .state = {}, .first = first, .tensor = run}, into);
}

ParallelPlan plan_of(const Layout& layout) {
  return {.mesh = {.pipeline = layout.pp,
                   .tensor = layout.tp,
                   .placement = Placement(layout.placement)},
          .pipeline = {.schedule = layout.schedule,
                       .microbatches = layout.microbatches,
                       .chunks = layout.chunks},
          .tensor = {.prescaled_batch = layout.prescaled, .speed = layout.speed},
          // Buckets are small, so that there are many. Norms and some biases are not sharded.
          .sharding = {.level = layout.sharding,
                       .degree = layout.degree,
                       .bucket_elements = 3000,
                       .persistence_threshold = 40},
          .activations = {.checkpoint_group = layout.checkpoint_group, .offload = layout.offload},
          .precision = {.dtype = layout.dtype}};
}

ParallelOptions options_of(const Layout& layout) {
  return {.plan = plan_of(layout),
          .offload = {.min_bytes = layout.offload_from},
          .rounding_seed = layout.rounded ? std::optional<std::uint64_t>(9) : std::nullopt};
}

namespace {

constexpr double kRate = 3e-3;

void load(const StateRun& run, const Whole& from) {
  const std::vector<double>& whole = from.values.at(name_of(run));
  std::vector<float> values;
  for (const std::size_t place : places_in(run)) values.push_back(static_cast<float>(whole[place]));
  testing::set_values(run.tensor, values);
}

void disturb(const StateRun& run) {
  if (!run.state.name.empty()) return;
  std::vector<float> values = testing::values_of<float>(run.tensor);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i % 3 < 2) values[i] = std::nextafter(values[i], i % 3 == 0 ? 10.0f : -10.0f);
  testing::set_values(run.tensor, values);
}

// Rounding draws its bits by the element of the whole parameter.
void expect_places(const ParallelModel& model) {
  for (const OwnedRun& run : model.owned()) {
    ASSERT_TRUE(run.segment.rounding.has_value());
    ASSERT_EQ(run.segment.master.dtype(), DType::bf16);
    const std::vector<std::size_t> places = places_of(*run.parameter);
    for (std::int64_t i = 0; i < run.segment.master.count(); ++i)
      ASSERT_EQ(run.segment.rounding->element(i), places[static_cast<std::size_t>(run.first + i)])
          << run.parameter->name() << " element " << i << " of the run from " << run.first;
  }
}

// Called while no rank is in a step.
DeviceStatistics statistics_of_all(collectives::Communicator& group) {
  if (!testing::on_cuda()) return {};
  group.host().barrier()->wait();
  const DeviceStatistics now = device_backend(DeviceType::cuda).statistics();
  group.host().barrier()->wait();
  return now;
}

// LAMB that treats each part of a parameter as a whole one.
class LambOfParts final : public nn::UpdateRule {
 public:
  explicit LambOfParts(std::unique_ptr<nn::UpdateRule> lamb) : lamb_(std::move(lamb)) {}
  std::string name() const override { return lamb_->name(); }
  std::vector<nn::RuleState> states(const Shape& parameter) const override {
    return lamb_->states(parameter);
  }
  std::int64_t sums(const Shape& parameter) const override { return lamb_->sums(parameter); }
  void update(const nn::RuleStep& step) const override {
    nn::UpdateGroup alone;
    lamb_->update({step.kernels, step.segments, step.states, step.state, step.sums, step.places,
                   alone, step.stream});
  }

 private:
  std::unique_ptr<nn::UpdateRule> lamb_;
};

std::unique_ptr<nn::UpdateRule> make_rule(Rule rule) {
  if (rule == Rule::adamw) return nn::adamw({.weight_decay = 0.1});
  if (rule == Rule::adafactor) return nn::adafactor({.weight_decay = 0.1});
  nn::LambOptions options;
  options.adam.weight_decay = 0.1;
  auto lamb = nn::lamb(options);
  if (rule == Rule::lamb) return lamb;
  return std::make_unique<LambOfParts>(std::move(lamb));
}

nn::StepOutcome update(DistributedOptimizer& optimizer, Rank& rank, Rule rule) {
  // LAMB's rate is relative to the norm of a parameter.
  const bool lamb = rule == Rule::lamb || rule == Rule::lamb_of_parts;
  return optimizer.step(rank.state,
                        {.learning_rate = lamb ? 5e-2 : kRate, .max_gradient_norm = 0.5});
}

// Steps on a device for which no host thread waits, and their results.
class Queued {
 public:
  Queued(Rank& rank, ParallelModel& model, DistributedOptimizer& optimizer, double first_scale)
      : rank_(rank),
        model_(model),
        optimizer_(optimizer),
        numbers_(rank.context.stream),
        scaler_(model.plan().precision.dtype == DType::f16
                    ? nn::LossScaler({.init_scale = first_scale})
                    : nn::LossScaler::none()) {
    scaler_.put(rank.state);
  }
  // `rate` is that of update number `update`, which is too high by the number of skipped steps.
  void step(std::vector<Microbatch>& microbatches, double targets, int update, double rate) {
    const nn::StepOptions options{.learning_rate = rate,
                                  .max_gradient_norm = 0.5,
                                  .update = update,
                                  .inverse_targets = static_cast<float>(1 / targets),
                                  .scaling = scaler_.rule()};
    optimizer_.set_step(rank_.state, options);
    for (Microbatch& microbatch : microbatches) microbatch.input.loss.state = &rank_.state;
    const Tensor losses = model_.adds_losses() ? rank_.context.empty({std::ssize(microbatches)},
                                                                     DType::f32, MemoryTag::data)
                                               : Tensor();
    model_.queue_train(microbatches, losses);
    optimizer_.queue_step(rank_.state, options);
    counts_.push_back(losses.defined());
    if (losses.defined())
      numbers_.note({losses, optimizer_.rule().norm()});
    else
      numbers_.note({optimizer_.rule().norm()});
    targets_.push_back(targets);
  }
  // All ranks read the same results.
  void read(Trained& result, collectives::Communicator& group) {
    collectives::watch(group, model_.context().stream);
    const auto all = numbers_.take();
    for (std::size_t step = 0; step < all.size(); ++step) {
      double loss = 0;
      for (std::size_t i = 0; i + 1 < all[step].size(); ++i) loss += all[step][i];
      EXPECT_EQ(all[step].size() > 1, counts_[step]);
      group.host().all_reduce(&loss, &loss, 1, DType::f64, collectives::ReduceOp::sum)->wait();
      result.losses.push_back(loss / targets_[step]);
      result.norms.push_back(all[step].back());
      result.skipped.push_back(!std::isfinite(all[step].back()));
    }
  }

 private:
  Rank& rank_;
  ParallelModel& model_;
  DistributedOptimizer& optimizer_;
  nn::DeferredResults numbers_;
  nn::LossScaler scaler_;
  std::vector<bool> counts_;
  std::vector<double> targets_;
};

// Rows [first, first + count) each begin up to three texts, at positions that differ from row to
// row.
void pack(Rank& rank, int first, int count, int length, nn::ChainInput& input) {
  std::vector<std::int32_t> begins;
  for (int row = first; row < first + count; ++row)
    begins.insert(begins.end(), {0, 1 + row % 5, row % 3 == 0 ? length : length - 1 - row % 2});
  const auto host = make_host_memory();
  Tensor sequences = Tensor::empty({count, 3}, DType::i32, *host, MemoryTag::data);
  std::copy(begins.begin(), begins.end(), sequences.data<std::int32_t>());
  const Tensor positions = nn::positions_in(sequences, length, *host);
  const auto* const of_tokens = positions.const_data<std::int32_t>();
  input.sequences = rank.ids({count, 3}, begins);
  input.positions = rank.ids({count, length}, {of_tokens, of_tokens + positions.count()});
}

// The decoder has half as many positions as the encoder.
nn::ChainInput encoder_decoder_input(Rank& rank, const Task& task, int step, int first, int rows) {
  nn::ChainInput input = encoder_input(rank, {.type_vocab_size = 0}, nn::EncoderTask::masked_lm,
                                       step, first, rows, task.length);
  input.targets = rank.rows(step, first, rows, true, task.length / 2);
  const auto host = make_host_memory();
  const Tensor shifted = nn::shifted_right(input.targets, tiny_encoder_decoder(task), *host);
  const auto* const ids = shifted.const_data<std::int32_t>();
  input.decoder_ids = rank.ids(shifted.shape(), {ids, ids + shifted.count()});
  return input;
}

// This rank's microbatches of a step. Adds their targets to `targets`.
std::vector<Microbatch> batches(Rank& rank, const Layout& layout, const ParallelModel& model,
                                int step, std::int64_t& targets) {
  const int length = layout.task.length;
  const int rows = layout.task.rows / layout.rdp / layout.microbatches / model.batch_parts();
  std::vector<Microbatch> microbatches;
  for (int i = 0; i < layout.microbatches; ++i) {
    const int first = ((model.mesh().place().rdp * layout.microbatches + i) * model.batch_parts() +
                       model.batch_part()) *
                      rows;
    nn::ChainInput input;
    if (is_encoder_decoder(layout.task.model)) {
      input = encoder_decoder_input(rank, layout.task, step, first, rows);
    } else if (layout.task.model != Model::bert) {
      input.ids = rank.rows(step, first, rows, false, length);
      input.targets = rank.rows(step, first, rows, true, length);
      if (layout.task.packed) pack(rank, first, rows, length, input);
    } else {
      input = encoder_input(rank, tiny_encoder("bert", layout.task.heads, kUnits - 2),
                            nn::EncoderTask::masked_lm, step, first, rows, length);
    }
    microbatches.push_back({std::move(input), static_cast<std::uint32_t>(first)});
    const Tensor& wanted = microbatches.back().input.targets;
    const auto* ids = wanted.const_data<std::int32_t>();
    targets += std::count_if(ids, ids + wanted.count(), [](auto id) { return id >= 0; });
  }
  return microbatches;
}

}  // namespace

Trained trained(const Layout& layout, int from, int to, const Whole* start) {
  const test::OneCore one_core;
  Trained result;
  result.offloaded.resize(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    const std::unique_ptr<nn::Chain> chain = make_model(layout.task);
    for (nn::Parameter* parameter : chain->parameters())
      if (layout.frozen && (parameter->name().find("wpe") != std::string::npos ||
                            parameter->name().find("h.1.") != std::string::npos))
        parameter->set_trainable(false);
    const auto host = make_pinned_memory();
    ParallelOptions options = options_of(layout);
    if (layout.apart) options.masters = host.get();
    ParallelModel model(rank.context, *chain, mesh, options);
    DistributedOptimizer optimizer(
        model, make_rule(layout.rule),
        {.dynamic_loss_scale = layout.dtype == DType::f16,
         .dynamic_loss_args = {.init_scale = start ? 0x1p16 : layout.first_scale}},
        options.masters);
    if (layout.rounded) expect_places(model);
    if (layout.disturbed) {
      for (const StateRun& run : optimizer.state_runs()) disturb(run);
      optimizer.refresh();
    }
    if (start) {
      for (const StateRun& run : optimizer.state_runs()) load(run, *start);
      optimizer.refresh();
      rank.state.step = static_cast<std::uint32_t>(from);
    }
    std::optional<Queued> queued;
    if (layout.queued) queued.emplace(rank, model, optimizer, layout.first_scale);
    for (int step = from; step < to; ++step) {
      std::int64_t targets = 0;
      std::vector<Microbatch> microbatches = batches(rank, layout, model, step, targets);
      const auto global = static_cast<double>(sum_over_samples(mesh, model, targets));
      const DeviceStatistics before = statistics_of_all(*group);
      const auto asked = [&] {
        const DeviceStatistics after = statistics_of_all(*group);
        if (world.rank == layout.ranks() - 1)
          result.asked.push_back({after.synchronizations - before.synchronizations,
                                  after.blocking_copies - before.blocking_copies,
                                  after.allocations - before.allocations,
                                  after.deallocations - before.deallocations});
      };
      if (queued) {
        queued->step(microbatches, global, step, kRate);
        asked();
        continue;
      }
      for (Microbatch& microbatch : microbatches)
        microbatch.input.loss.loss_scale = static_cast<float>(optimizer.loss_scale() / global);
      const StageLoss loss = model.train(microbatches);
      EXPECT_EQ(static_cast<double>(loss.targets), global);
      if (step == from) {
        const std::scoped_lock lock(mutex);
        for (const OwnedRun& run : model.owned())
          if (run.writes) collect(*run.parameter, run.first, run.segment.gradient, result.first);
      }
      const nn::StepOutcome outcome = update(optimizer, rank, layout.rule);
      asked();
      if (world.rank == layout.ranks() - 1) {
        result.losses.push_back(loss.sum / global);
        result.norms.push_back(outcome.gradient_norm);
        result.skipped.push_back(outcome.skipped);
      }
    }
    if (queued) {
      Trained mine;
      queued->read(world.rank == layout.ranks() - 1 ? result : mine, *group);
    }
    std::int64_t targets = 0;
    const std::vector<Microbatch> unseen = batches(rank, layout, model, kSteps, targets);
    const StageLoss evaluated = model.evaluate(unseen);
    {
      const std::scoped_lock lock(mutex);
      result.evaluated = evaluated.sum / static_cast<double>(evaluated.targets);
      Offloaded& offloaded = result.offloaded[static_cast<std::size_t>(world.rank)];
      offloaded.statistics = model.offload_statistics();
      const Schedule& schedule = model.schedule();
      for (std::size_t stage = 0; stage < schedule.rank_of_stage.size(); ++stage)
        if (schedule.rank_of_stage[stage] == mesh.place().pp)
          offloaded.units.push_back(model.partition().stages[stage]);
      if (world.rank == 0) result.tp_operations = mesh.tp().host().statistics().operations;
    }
    model.wait_for_values();
    {
      const std::scoped_lock lock(mutex);
      for (const StateRun& run : optimizer.state_runs())
        if (run.writes) collect(run, result.state);
    }
    group->barrier()->wait();
  });
  return result;
}

const Trained& one_rank(DType dtype, const Task& task, int steps) {
  static std::map<std::tuple<DType, Task, int>, Trained> made;
  const auto [found, fresh] = made.try_emplace({dtype, task, steps});
  if (fresh) found->second = trained({.task = task, .dtype = dtype}, 0, steps);
  return found->second;
}

Difference difference(const Trained& got, const Trained& want) {
  Difference found;
  // std::max would ignore NaN.
  const auto keep = [](double& largest, double apart) {
    if (std::isnan(apart) || apart > largest) largest = apart;
  };
  EXPECT_EQ(got.losses.size(), want.losses.size());
  for (std::size_t step = 0; step < std::min(got.losses.size(), want.losses.size()); ++step) {
    keep(found.loss, std::abs(got.losses[step] / want.losses[step] - 1));
    if (got.skipped[step] && want.skipped[step]) continue;  // their norms are not finite
    keep(found.norm, std::abs(got.norms[step] / want.norms[step] - 1));
  }
  double whole = 0, apart = 0;
  for (const auto& [parameter, values] : want.first.values) {
    EXPECT_TRUE(got.first.values.contains(parameter)) << parameter;
    if (!got.first.values.contains(parameter)) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      const double off = got.first.values.at(parameter)[i] - values[i];
      apart += off * off;
    }
  }
  found.gradient = std::sqrt(apart / whole);
  return found;
}

void expect_one_writer(const Whole& got, const Whole& want) {
  for (const auto& [name, values] : want.values) {
    ASSERT_TRUE(got.writers.contains(name)) << name;
    EXPECT_THAT(got.writers.at(name), ::testing::Each(1)) << name;
  }
  EXPECT_EQ(got.values.size(), want.values.size());
}

}  // namespace shoal::parallel
