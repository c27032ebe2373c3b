#include "shoal/nn/autograd/tape.h"

#include <algorithm>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

struct Edge {
  int node = -1;  // -1: a constant
  int slot = 0;
};

struct Node {
  std::unique_ptr<Function> function;  // null: a leaf, or already walked
  bool leaf = false;
  std::vector<Edge> inputs;
  std::vector<Parameter*> parameters;  // uses that have not ended yet
  std::vector<Tensor> gradients;       // one per output
  std::vector<int> readers;            // per output: number of recorded inputs that read it
};

struct DeferredWork {
  std::vector<Parameter*> parameters;
  std::function<void()> work;
};

void end_uses(std::vector<Parameter*>& parameters) {
  // Each parameter is removed first because its hook may throw. Its use has then ended, and the
  // remaining uses end with the tape.
  while (!parameters.empty()) {
    Parameter* const parameter = parameters.front();
    parameters.erase(parameters.begin());
    parameter->end_use();
  }
}

Tensor sum(Context& context, Tensor a, Tensor b) {
  SHOAL_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype(),
              "two gradients of one value differ: {} {} and {} {}", to_string(a.dtype()),
              to_string(a.shape()), to_string(b.dtype()), to_string(b.shape()));
  Tensor out = may_overwrite(a) ? a : may_overwrite(b) ? b : context.empty(a.shape(), a.dtype());
  context.run("gradient_sum", {a, b}, {out},
              [&] { context.kernels().elementwise().add(a, b, out.view(), context.stream); });
  return out;
}

class WithoutTape {
 public:
  explicit WithoutTape(Context& context) : context_(context), tape_(context.tape) {
    context.tape = nullptr;
  }
  ~WithoutTape() { context_.tape = tape_; }
  WithoutTape(const WithoutTape&) = delete;
  WithoutTape& operator=(const WithoutTape&) = delete;

 private:
  Context& context_;
  Tape* tape_;
};

}  // namespace

struct Tape::Impl {
  std::vector<Node> nodes;
  std::vector<DeferredWork> deferred;
  SavedTensorHooks hooks;
  bool walked = false;

  void drop(Node& node) {
    node.function.reset();
    for (Tensor& gradient : node.gradients) gradient = {};
    end_uses(node.parameters);
  }
};

Tape::Tape() : impl_(std::make_unique<Impl>()) {}

Tape::~Tape() {
  // Hooks may throw, but a destructor must not. Only the notification of an abandoned step is lost.
  for (Node& node : impl_->nodes) try {
      impl_->drop(node);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  for (DeferredWork& work : impl_->deferred) try {
      end_uses(work.parameters);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
}

Value Tape::leaf(Tensor tensor) {
  SHOAL_CHECK(!impl_->walked, "a leaf is added to a tape that has been walked; use a new tape");
  Node node;
  node.leaf = true;
  node.gradients.resize(1);
  node.readers.resize(1);
  impl_->nodes.push_back(std::move(node));
  return {std::move(tensor), this, static_cast<int>(impl_->nodes.size()) - 1, 0};
}

std::vector<Value> Tape::record(std::unique_ptr<Function> function, std::span<const Value> inputs,
                                std::span<Parameter* const> parameters,
                                std::vector<Tensor> outputs) {
  SHOAL_CHECK(!impl_->walked, "{} is recorded on a tape that has been walked; use a new tape",
              function->name());
  Node node;
  for (const Value& input : inputs) {
    SHOAL_CHECK(!input.tape || input.tape == this,
                "{}: an input was recorded on another tape; one tape serves one microbatch",
                function->name());
    node.inputs.push_back(input.tape ? Edge{input.node, input.slot} : Edge{});
    if (!input.tape) continue;
    Node& from = impl_->nodes[static_cast<std::size_t>(input.node)];
    ++from.readers[static_cast<std::size_t>(input.slot)];
  }
  for (Parameter* parameter : parameters) {
    if (!parameter || !parameter->trainable()) continue;
    parameter->begin_use();
    node.parameters.push_back(parameter);
  }
  node.function = std::move(function);
  node.gradients.resize(outputs.size());
  node.readers.resize(outputs.size());
  impl_->nodes.push_back(std::move(node));
  std::vector<Value> values;
  const int index = static_cast<int>(impl_->nodes.size()) - 1;
  for (std::size_t slot = 0; slot < outputs.size(); ++slot)
    values.push_back({std::move(outputs[slot]), this, index, static_cast<int>(slot)});
  return values;
}

void Tape::backward(Context& context, std::span<const Value> outputs, std::vector<Tensor> gradients,
                    Options options) {
  SHOAL_CHECK(!outputs.empty() && outputs.size() == gradients.size(),
              "backward from {} outputs with {} gradients", outputs.size(), gradients.size());
  SHOAL_CHECK(!impl_->walked, "a tape is walked twice; its saved tensors are gone");
  if (outputs.size() == 1 && !gradients[0].defined()) {
    const Tensor& one = outputs[0].tensor;
    SHOAL_CHECK(one.defined() && one.count() == 1,
                "backward from an output of more than one element needs its gradient");
    gradients[0] = context.empty(one.shape(), one.dtype());
    context.run("gradient_seed", {}, {gradients[0]}, [&] {
      context.kernels().elementwise().fill(gradients[0].view(), 1, context.stream);
    });
  }
  const WithoutTape guard(context);
  auto& nodes = impl_->nodes;
  int last = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Value& output = outputs[i];
    SHOAL_CHECK(output.tape == this, "backward from a value that is not on this tape");
    SHOAL_CHECK(!output.tensor.defined() || !gradients[i].defined() ||
                    gradients[i].shape() == output.tensor.shape(),
                "backward: a gradient {} for an output {}", to_string(gradients[i].shape()),
                to_string(output.tensor.shape()));
    last = std::max(last, output.node);
  }
  impl_->walked = true;
  for (std::size_t i = nodes.size(); i-- > static_cast<std::size_t>(last) + 1;)
    impl_->drop(nodes[i]);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined()) continue;
    Tensor& into = nodes[static_cast<std::size_t>(outputs[i].node)]
                       .gradients[static_cast<std::size_t>(outputs[i].slot)];
    Tensor added = std::move(gradients[i]);
    into = into.defined() ? sum(context, std::move(into), std::move(added)) : std::move(added);
  }
  WeightBranch* const branch = options.deferred ? nullptr : context.branch;
  try {
    walk(context, last, options.deferred);
  } catch (...) {
    if (branch != nullptr) branch->give_up();
    throw;
  }
  if (branch != nullptr) branch->join(context);
}

void Tape::walk(Context& context, int from, bool deferred) {
  auto& nodes = impl_->nodes;
  for (int i = from; i >= 0; --i) {
    Node& node = nodes[static_cast<std::size_t>(i)];
    if (node.leaf) continue;
    const auto defined = [](const Tensor& tensor) { return tensor.defined(); };
    if (std::any_of(node.gradients.begin(), node.gradients.end(), defined)) {
      BackwardContext backward_context(context, *this, i, deferred);
      std::vector<Tensor> gradients =
          node.function->backward(backward_context, std::span<Tensor>(node.gradients));
      SHOAL_CHECK(gradients.size() == node.inputs.size(), "{} returned {} gradients for {} inputs",
                  node.function->name(), gradients.size(), node.inputs.size());
      for (std::size_t k = 0; k < gradients.size(); ++k) {
        const Edge edge = node.inputs[k];
        if (edge.node < 0 || !gradients[k].defined()) continue;
        Tensor& into = nodes[static_cast<std::size_t>(edge.node)]
                           .gradients[static_cast<std::size_t>(edge.slot)];
        Tensor added = std::move(gradients[k]);
        into = into.defined() ? sum(context, std::move(into), std::move(added)) : std::move(added);
      }
    }
    impl_->drop(node);
  }
}

void BackwardContext::weight_gradient(std::span<Parameter* const> parameters,
                                      std::function<void()> work, bool deferred) {
  tape_.weight_gradient(node_, parameters, std::move(work), deferred);
}

std::function<void()> BackwardContext::on_branch(std::function<void()> work) {
  if (context_.branch == nullptr || deferred_) return work;
  return [&context = context_, work = std::move(work)]() mutable {
    context.branch->run(context, std::move(work));
  };
}

std::optional<ActivationGate> BackwardContext::take_gate(int input) {
  return tape_.take_gate(node_, input);
}

Tensor BackwardContext::take_sum(int input) {
  Tensor sum = tape_.take_sum(node_, input);
  if (sum.defined() || context_.branch == nullptr || deferred_) return sum;
  // Pending work of the branch may hold the only other reference to the gradient. Whether the sum
  // is made in place, and hence its rounding, must not depend on the branch's progress.
  if (tape_.has_sum(node_, input)) context_.branch->join(context_);
  return tape_.take_sum(node_, input);
}

Tensor Tape::take_sum(int index, int input) {
  const Edge edge =
      impl_->nodes[static_cast<std::size_t>(index)].inputs.at(static_cast<std::size_t>(input));
  if (edge.node < 0) return {};
  Tensor& into = impl_->nodes[static_cast<std::size_t>(edge.node)]
                     .gradients[static_cast<std::size_t>(edge.slot)];
  return may_overwrite(into) ? std::exchange(into, {}) : Tensor();
}

bool Tape::has_sum(int index, int input) const {
  const Edge edge =
      impl_->nodes[static_cast<std::size_t>(index)].inputs.at(static_cast<std::size_t>(input));
  return edge.node >= 0 && impl_->nodes[static_cast<std::size_t>(edge.node)]
                               .gradients[static_cast<std::size_t>(edge.slot)]
                               .defined();
}

std::optional<ActivationGate> Tape::take_gate(int index, int input) {
  const Node& node = impl_->nodes[static_cast<std::size_t>(index)];
  const Edge edge = node.inputs.at(static_cast<std::size_t>(input));
  if (edge.node < 0) return {};
  const Node& from = impl_->nodes[static_cast<std::size_t>(edge.node)];
  const bool alone = from.readers.size() == 1 && from.readers[0] == 1;
  return alone && from.function ? from.function->give_gate() : std::nullopt;
}

void Tape::weight_gradient(int index, std::span<Parameter* const> parameters,
                           std::function<void()> work, bool defer) {
  Node& node = impl_->nodes[static_cast<std::size_t>(index)];
  DeferredWork entry;
  for (Parameter* parameter : parameters) {
    if (!parameter || !parameter->trainable()) continue;
    const auto found = std::find(node.parameters.begin(), node.parameters.end(), parameter);
    SHOAL_CHECK(found != node.parameters.end(),
                "{} computes the gradient of {}, which it did not record", node.function->name(),
                parameter->name());
    node.parameters.erase(found);
    entry.parameters.push_back(parameter);
  }
  if (entry.parameters.empty()) return;
  if (defer) {
    entry.work = std::move(work);
    impl_->deferred.push_back(std::move(entry));
    return;
  }
  // If the work or a hook throws, the remaining uses end with the tape, once each.
  try {
    work();
    end_uses(entry.parameters);
  } catch (...) {
    node.parameters.insert(node.parameters.end(), entry.parameters.begin(), entry.parameters.end());
    throw;
  }
}

void Tape::run_deferred() {
  // Each entry and its tensors are dropped before the next entry runs.
  std::vector<DeferredWork>& queue = impl_->deferred;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    if (queue[i].work) std::exchange(queue[i].work, {})();
    end_uses(queue[i].parameters);
  }
  queue.clear();
}

std::size_t Tape::deferred() const { return impl_->deferred.size(); }

Tensor Tape::gradient(const Value& leaf) const {
  SHOAL_CHECK(
      leaf.tape == this && leaf.node >= 0 && impl_->nodes[static_cast<std::size_t>(leaf.node)].leaf,
      "only leaves of this tape keep their gradient");
  return impl_->nodes[static_cast<std::size_t>(leaf.node)].gradients[0];
}

Tensor Tape::take_gradient(const Value& leaf) {
  Tensor taken = gradient(leaf);
  impl_->nodes[static_cast<std::size_t>(leaf.node)].gradients[0] = {};
  return taken;
}

void Tape::set_saved_tensor_hooks(SavedTensorHooks hooks) { impl_->hooks = std::move(hooks); }
const SavedTensorHooks& Tape::saved_tensor_hooks() const { return impl_->hooks; }
std::size_t Tape::size() const { return impl_->nodes.size(); }

}  // namespace shoal::nn
