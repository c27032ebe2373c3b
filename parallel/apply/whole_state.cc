// Every replica keeps all of its parameters' state.
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/apply/model_state.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;

std::vector<nn::Parameter*> parameters_of(const std::vector<HeldParameter>& held) {
  std::vector<nn::Parameter*> all;
  for (const HeldParameter& entry : held) all.push_back(entry.parameter);
  return all;
}

class WholeState final : public ModelState {
 public:
  WholeState(nn::Context& context, ProcessMesh& mesh, std::vector<HeldParameter> held, bool splits,
             const ModelStateOptions& options)
      : mesh_(mesh),
        held_(std::move(held)),
        splits_(splits),
        reducer_(options.reducer),
        weights_(parameters_of(held_), options.dtype, context.kernels(), context.memory(),
                 options.fill) {
    reducer_.tracer = options.tracer;
  }

  void make_gradients() override {
    std::vector<nn::Parameter*> over_rdp, over_dp;
    for (const HeldParameter& entry : held_)
      (entry.partial ? over_dp : over_rdp).push_back(entry.parameter);
    rdp_ = mesh_.split(mesh_.rdp(), 0, mesh_.place().rdp);
    over_rdp_ = std::make_unique<Reducer>(over_rdp, *rdp_, reducer_);
    if (!splits_) return;
    // Communicators are made by all ranks or none, whatever their stages hold.
    dp_ = mesh_.split(mesh_.dp(), 0, mesh_.dp().rank());
    if (!over_dp.empty()) over_dp_ = std::make_unique<Reducer>(over_dp, *dp_, reducer_);
  }

  void begin_step() override {
    over_rdp_->begin_step();
    if (over_dp_) over_dp_->begin_step();
  }
  void arm() override {
    over_rdp_->arm();
    if (over_dp_) over_dp_->arm();
  }
  void finish() override {
    over_rdp_->finish();
    if (over_dp_) over_dp_->finish();
    for (const HeldParameter& entry : held_) {
      if (!entry.tied) continue;
      const auto began = Clock::now();
      auto* const gradient = entry.parameter->gradient.data<float>();
      entry.tied
          ->all_reduce(gradient, gradient, entry.parameter->shape().count(), DType::f32,
                       ReduceOp::sum)
          ->wait();
      tied_seconds_ += seconds_since(began);
    }
  }
  ReducerStatistics statistics() const override {
    ReducerStatistics all;
    for (const Reducer* const reducer : {over_rdp_.get(), over_dp_.get()}) {
      if (reducer == nullptr) continue;
      const ReducerStatistics& more = reducer->statistics();
      all.steps = more.steps;
      all.reduced_bytes += more.reduced_bytes;
      all.hidden_bytes += more.hidden_bytes;
      all.exposed_seconds += more.exposed_seconds;
    }
    all.exposed_seconds += tied_seconds_;
    return all;
  }
  void drop_gradients() override {
    over_dp_.reset();
    over_rdp_.reset();
    for (const HeldParameter& entry : held_) entry.parameter->gradient = {};
  }

  nn::UnitObserver* observer() override { return nullptr; }
  std::vector<OwnedRun> owned() const override {
    std::vector<OwnedRun> runs;
    const std::vector<nn::Segment> segments = weights_.segments();  // trainable ones, in order
    for (const HeldParameter& entry : held_) {
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
  ProcessMesh& mesh_;
  std::vector<HeldParameter> held_;
  bool splits_;
  ReducerOptions reducer_;
  double tied_seconds_ = 0;
  nn::MasterWeights weights_;
  // Groups of their own: which bucket goes when is each rank's matter.
  std::shared_ptr<collectives::Communicator> rdp_, dp_;
  std::unique_ptr<Reducer> over_rdp_, over_dp_;
};

}  // namespace

std::unique_ptr<ModelState> make_whole_state(nn::Context& context, ProcessMesh& mesh,
                                             std::vector<HeldParameter> held, bool splits,
                                             const ModelStateOptions& options) {
  return std::make_unique<WholeState>(context, mesh, std::move(held), splits, options);
}

}  // namespace shoal::parallel
