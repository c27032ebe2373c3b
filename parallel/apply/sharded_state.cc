// The ranks of rdp share one copy of their parameters' state, or several copies (MiCS).
#include <algorithm>

#include "shoal/parallel/apply/model_state.h"
#include "shoal/parallel/shard/sharded_units.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::Communicator;
using collectives::ReduceOp;

// Other ranks whose gradient is added: tensor-parallel ranks, and ranks that hold the same tied
// weight.
struct Peers {
  bool partial = false;
  int tied = -1;  // StageParameter::tied
  bool operator==(const Peers&) const = default;
};

class ShardedState final : public ModelState {
 public:
  ShardedState(nn::Context& context, const nn::Chain& chain, ProcessMesh& mesh,
               std::vector<StageParameter> stage_parameters, const std::vector<TiedSet>& tied,
               const ParallelOptions& options)
      : mesh_(mesh),
        stage_parameters_(std::move(stage_parameters)),
        context_(context),
        has_masters_(options.plan.precision.dtype != DType::f32 && !options.rounding_seed),
        tracer_(options.tracer),
        tied_(tied) {
    make_groups(options.plan.sharding.degree);
    std::vector<nn::Parameter*> parameters;
    for (const StageParameter& entry : stage_parameters_) parameters.push_back(entry.parameter);
    layout_ = make_shard_layout(parameters, groups_, options.plan.sharding,
                                parameters_of_units(chain), sets());
    values_ = std::make_unique<ShardedValues>(layout_, options.plan.precision.dtype,
                                              context.kernels(), context.memory(), options.fill,
                                              options.rounding_seed, options.masters);
    units_ = std::make_unique<ShardedUnits>(chain, *values_);
  }
  ~ShardedState() override {
    // Releases the values, which are in the shard group's memory.
    for (const StageParameter& entry : stage_parameters_) entry.parameter->value = {};
  }

  void make_gradients() override {
    // Every rank takes part in creating groups, even if its stages do not need them.
    if (groups_.copies() > 1 && mesh_.shape().tp > 1)
      tp_of_copies_ = mesh_.split(mesh_.dp(), groups_.rank(), mesh_.dp().rank());
    tied_groups_ = make_tied_groups(mesh_, tied_, groups_.shards(), groups_.rank());
    gradients_ = make_sharded_gradients(layout_, context_.kernels(), context_.memory(), tracer_);
  }
  void begin_step() override { gradients_->begin_step(); }
  void arm() override { gradients_->arm(); }
  void finish() override {
    gradients_->finish();
    const auto began = Clock::now();
    sum_parts();
    parts_seconds_ += seconds_since(began);
  }
  void abandon_step(const std::function<void()>& drop_tapes) override {
    gradients_->abandon_step();
    drop_tapes();
    values_->abandon_step();
  }
  // An empty block is allocated with one element.
  KeptElements kept() const override {
    const ShardPlan& plan = layout_.plan;
    const auto some = [](std::int64_t count) { return std::max<std::int64_t>(count, 1); };
    KeptElements kept{
        .values = some(plan.flat.count - plan.unit_count()) + some(plan.unit_count() / plan.shards),
        .gradients = some(layout_.options.level == 1 ? plan.flat.count : plan.shard_count()),
        .masters = has_masters_ ? some(plan.shard_count()) : 0};
    for (const nn::Parameter* parameter : layout_.frozen) kept.values += parameter->shape().count();
    return kept;
  }
  ReducerStatistics statistics() const override {
    if (!gradients_) return {};
    const ShardedGradientStatistics from = gradients_->statistics();
    ReducerStatistics all;
    all.steps = from.steps;
    all.reduced_bytes = from.reduced_bytes;
    all.hidden_bytes = from.hidden_bytes;
    all.exposed_seconds = from.exposed_seconds + parts_seconds_;
    return all;
  }
  void drop_gradients() override {
    gradients_.reset();
    for (const StageParameter& entry : stage_parameters_) entry.parameter->gradient = {};
  }

  nn::UnitObserver* observer() override { return units_.get(); }
  std::vector<OwnedRun> owned() const override {
    std::vector<OwnedRun> runs;
    const std::vector<nn::Segment> segments = values_->segments(gradients_.get());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const ShardSegment& mine = layout_.segments[i];
      nn::Parameter* const parameter = layout_.parameters[static_cast<std::size_t>(mine.parameter)];
      const auto entry =
          std::ranges::find(stage_parameters_, parameter, &StageParameter::parameter);
      OwnedRun run{parameter, entry->number, mine.first, segments[i],
                   entry->counted && is_first_copy()};
      run.segment.in_norm = entry->counted;
      runs.push_back(std::move(run));
    }
    return runs;
  }
  void publish() override { values_->publish(); }
  void wait() override { values_->wait(); }
  void refresh() override { values_->refresh(); }
  void drop_idle() override { units_->drop_idle(); }
  bool is_first_copy() const override { return !replicas_ || replicas_->rank() == 0; }

 private:
  void make_groups(int degree) {
    const int ranks = mesh_.shape().rdp, rank = mesh_.place().rdp;
    if (degree == 0) degree = ranks;
    const ShardPlace place = shard_place(rank, ranks, degree);
    shard_ = mesh_.split(mesh_.rdp(), place.shard_color, place.shard_key);
    if (degree < ranks)
      replicas_ = mesh_.split(mesh_.rdp(), place.replica_color, place.replica_key);
    groups_ = {shard_.get(), replicas_.get()};
  }

  // Groups parameters by their peers. Ranks with the same peers get the same sets in model order.
  std::vector<std::vector<nn::Parameter*>> sets() {
    std::vector<std::vector<nn::Parameter*>> sets;
    for (const StageParameter& entry : stage_parameters_) {
      const Peers peers{entry.partial, entry.tied};
      if (peers == Peers{} || !entry.parameter->trainable()) continue;
      const auto found = std::ranges::find(peers_, peers);
      const auto index = static_cast<std::size_t>(found - peers_.begin());
      if (found == peers_.end()) {
        peers_.push_back(peers);
        sets.emplace_back();
      }
      sets[index].push_back(entry.parameter);
    }
    return sets;
  }

  // All ranks that own the same part as this one, over all copies.
  Communicator& owners_with(const Peers& peers) const {
    if (peers.tied >= 0) return *tied_groups_[static_cast<std::size_t>(peers.tied)];
    return tp_of_copies_ ? *tp_of_copies_ : mesh_.tp();
  }

  // All copies hold the same sums here, so only the first copy contributes.
  void sum_parts() {
    std::vector<collectives::WorkPtr> works;
    for (int b = 0; b < layout_.plan.buckets(); ++b) {
      const int set = layout_.set_of[static_cast<std::size_t>(b)];
      if (set < 0) continue;
      const Tensor part = gradients_->part(b);
      if (!is_first_copy()) context_.kernels().elementwise().fill(part.view(), 0, {});
      void* const data = part.view().data;
      works.push_back(
          owners_with(peers_[static_cast<std::size_t>(set)])
              .all_reduce(data, data, part.count(), DType::f32, ReduceOp::sum, context_.stream));
    }
    for (const collectives::WorkPtr& work : works) work->block_stream(context_.stream);
  }

  ProcessMesh& mesh_;
  std::vector<StageParameter> stage_parameters_;
  nn::Context& context_;
  const bool has_masters_;
  Tracer* tracer_;
  const std::vector<TiedSet> tied_;
  double parts_seconds_ = 0;
  std::shared_ptr<Communicator> shard_, replicas_;  // replicas_ is null for one shard group
  ShardGroups groups_;
  std::shared_ptr<Communicator> tp_of_copies_;  // null: one copy, or no tp
  std::vector<std::shared_ptr<Communicator>> tied_groups_;
  std::vector<Peers> peers_;  // by set of the layout
  ShardLayout layout_;
  std::unique_ptr<ShardedValues> values_;
  std::unique_ptr<ShardedGradients> gradients_;
  std::unique_ptr<ShardedUnits> units_;
};

}  // namespace

std::unique_ptr<ModelState> make_sharded_state(nn::Context& context, const nn::Chain& chain,
                                               ProcessMesh& mesh,
                                               std::vector<StageParameter> stage_parameters,
                                               const std::vector<TiedSet>& tied,
                                               const ParallelOptions& options) {
  return std::make_unique<ShardedState>(context, chain, mesh, std::move(stage_parameters), tied,
                                        options);
}

}  // namespace shoal::parallel
