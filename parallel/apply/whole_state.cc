// Every replica keeps the whole state of its parameters.
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/apply/model_state.h"

namespace shoal::parallel {
namespace {

std::vector<nn::Parameter*> parameters_of(const std::vector<StageParameter>& stage_parameters) {
  std::vector<nn::Parameter*> all;
  for (const StageParameter& entry : stage_parameters) all.push_back(entry.parameter);
  return all;
}

class WholeState final : public ModelState {
 public:
  WholeState(nn::Context& context, ProcessMesh& mesh, std::vector<StageParameter> stage_parameters,
             bool has_partial, const std::vector<TiedSet>& tied, const ParallelOptions& options)
      : mesh_(mesh),
        stage_parameters_(std::move(stage_parameters)),
        has_partial_(has_partial),
        has_masters_(options.plan.precision.dtype != DType::f32 && !options.rounding_seed),
        context_(context),
        reducer_(options.reducer),
        tied_(tied),
        weights_(parameters_of(stage_parameters_), options.plan.precision.dtype, context.kernels(),
                 context.memory(), options.fill, options.masters, options.rounding_seed) {
    reducer_.tracer = options.tracer;
  }

  void make_gradients() override {
    std::vector<nn::Parameter*> over_rdp, over_dp;
    std::vector<std::vector<nn::Parameter*>> tied(tied_.size());
    for (const StageParameter& entry : stage_parameters_)
      (entry.tied >= 0 ? tied[static_cast<std::size_t>(entry.tied)]
       : entry.partial ? over_dp
                       : over_rdp)
          .push_back(entry.parameter);
    add_sum(over_rdp, mesh_.split(mesh_.rdp(), 0, mesh_.place().rdp));
    // Every rank takes part in creating groups, even if its stages do not need them.
    if (has_partial_) add_sum(over_dp, mesh_.split(mesh_.dp(), 0, mesh_.dp().rank()));
    const auto groups = make_tied_groups(mesh_, tied_, 1, 0);
    for (std::size_t set = 0; set < groups.size(); ++set) add_sum(tied[set], groups[set]);
  }

  void begin_step() override {
    for (const Sum& sum : sums_) sum.reducer->begin_step();
  }
  void arm() override {
    for (const Sum& sum : sums_) sum.reducer->arm();
  }
  void finish() override {
    if (sums_.size() > 1)
      for (const Sum& sum : sums_) sum.reducer->flush();
    for (const Sum& sum : sums_) sum.reducer->finish();
  }
  void abandon_step(const std::function<void()>& drop_tapes) override {
    for (const Sum& sum : sums_) sum.reducer->abandon_step();
    drop_tapes();
  }
  Reducer* reducer() override { return sums_.size() == 1 ? sums_[0].reducer.get() : nullptr; }
  // The gradient and the master of a parameter begin at a cache line.
  KeptElements kept() const override {
    KeptElements kept;
    for (const StageParameter& entry : stage_parameters_) {
      const std::int64_t count = entry.parameter->shape().count();
      kept.values += count;
      if (!entry.parameter->trainable()) continue;
      kept.gradients += whole_lines(count);
      if (has_masters_) kept.masters += whole_lines(count);
    }
    return kept;
  }
  ReducerStatistics statistics() const override {
    ReducerStatistics all;
    for (const Sum& sum : sums_) {
      const ReducerStatistics& more = sum.reducer->statistics();
      all.steps = more.steps;
      all.reduced_bytes += more.reduced_bytes;
      all.hidden_bytes += more.hidden_bytes;
      all.exposed_seconds += more.exposed_seconds;
    }
    return all;
  }
  void drop_gradients() override {
    for (Sum& sum : sums_) sum.reducer.reset();
    for (const StageParameter& entry : stage_parameters_) entry.parameter->gradient = {};
    sums_.clear();  // releases groups last, since gradients are in their memory
  }

  nn::UnitObserver* observer() override { return nullptr; }
  std::vector<OwnedRun> owned() const override {
    std::vector<OwnedRun> runs;
    const std::vector<nn::Segment> segments = weights_.segments();  // trainable, in order
    for (const StageParameter& entry : stage_parameters_) {
      if (!entry.parameter->trainable()) continue;
      OwnedRun run{entry.parameter, entry.number, 0, segments[runs.size()],
                   entry.counted && is_first_copy()};
      run.segment.in_norm = entry.counted;
      runs.push_back(std::move(run));
    }
    return runs;
  }
  void publish() override {}
  void wait() override {}
  void refresh() override { weights_.refresh(); }
  void drop_idle() override {}
  bool is_first_copy() const override { return mesh_.place().rdp == 0; }

 private:
  // Each sum needs its own group, because each rank decides when its buckets are reduced.
  struct Sum {
    std::shared_ptr<collectives::Communicator> group;
    std::unique_ptr<Reducer> reducer;
  };
  void add_sum(const std::vector<nn::Parameter*>& parameters,
               const std::shared_ptr<collectives::Communicator>& group) {
    if (parameters.empty()) return;
    // A group of one rank may have a communicator of the host, which takes no device memory.
    const bool alone = group->size() == 1 && !context_.stream.device.is_cpu();
    sums_.push_back({group, std::make_unique<Reducer>(
                                parameters,
                                alone ? make_no_reduction(context_.memory(), context_.stream)
                                      : make_all_reduction(*group),
                                reducer_)});
  }

  ProcessMesh& mesh_;
  std::vector<StageParameter> stage_parameters_;
  bool has_partial_;
  const bool has_masters_;
  nn::Context& context_;
  ReducerOptions reducer_;
  const std::vector<TiedSet> tied_;
  nn::MasterWeights weights_;
  std::vector<Sum> sums_;  // any two ranks list their common sums in the same order
};

}  // namespace

std::unique_ptr<ModelState> make_whole_state(nn::Context& context, ProcessMesh& mesh,
                                             std::vector<StageParameter> stage_parameters,
                                             bool has_partial, const std::vector<TiedSet>& tied,
                                             const ParallelOptions& options) {
  return std::make_unique<WholeState>(context, mesh, std::move(stage_parameters), has_partial, tied,
                                      options);
}

}  // namespace shoal::parallel
