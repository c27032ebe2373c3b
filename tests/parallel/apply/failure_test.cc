// A rank that fails ends the others within moments, whichever groups they wait in. Their errors
// name the rank and the reason.
#include <chrono>

#include "rig.h"

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using ::testing::HasSubstr;

constexpr const char* kWhy = "the test's own failure";

// Fails after `allocations` more allocations, once fail_after() is called.
class FullMemory final : public MemoryResource {
 public:
  explicit FullMemory(MemoryResource& upstream) : upstream_(upstream) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    if (left_ == 0) throw_error(ErrorCode::out_of_memory, "{}", kWhy);
    if (left_ > 0) --left_;
    return upstream_.allocate(bytes, tag, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    upstream_.deallocate(pointer, bytes, tag, stream);
  }
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "full"; }
  void fail_after(int allocations) { left_ = allocations; }

 private:
  MemoryResource& upstream_;
  int left_ = -1;
};

class FailingRule final : public nn::UpdateRule {
 public:
  explicit FailingRule(bool fails) : fails_(fails) {}
  std::string name() const override { return "a rule that fails"; }
  std::vector<nn::RuleState> states(const Shape&) const override { return {}; }
  void update(const nn::RuleStep&) const override {
    if (fails_) throw_error(ErrorCode::internal, "{}", kWhy);
  }

 private:
  bool fails_;
};

enum class Where { building, stage, update, evaluation };

struct Ended {
  ErrorCode code = ErrorCode::internal;
  std::string text;
  double at = 0;  // all ranks use one clock
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Runs one rank of the mesh until a rank fails.
void run_rank(const Layout& layout, ProcessMesh& mesh, bool fails, Where where) {
  Rank rank;
  FullMemory full(*rank.host);
  CountingMemory memory(full);
  nn::Context context(*rank.kernels, memory, rank.dispatcher);
  context.random.state = &rank.state;
  nn::CausalLm gpt2(tiny());
  if (fails && where == Where::building) full.fail_after(20);
  ParallelModel model(context, gpt2, mesh, options_of(layout));
  DistributedOptimizer optimizer(model,
                                 std::make_unique<FailingRule>(fails && where == Where::update));
  const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
  for (int step = 0; step < 3; ++step) {
    std::vector<Microbatch> microbatches;
    for (int i = 0; i < layout.microbatches; ++i)
      microbatches.push_back(
          {{rank.rows(step, 0, rows, false), rank.rows(step, 0, rows, true), {}, {}},
           static_cast<std::uint32_t>(model.batch_part() * rows)});
    if (fails && step == 1 && (where == Where::stage || where == Where::evaluation))
      full.fail_after(20);
    if (where == Where::evaluation) {
      model.evaluate(microbatches);
      continue;
    }
    model.train(microbatches);
    optimizer.step(rank.state, {.learning_rate = 1e-3});
  }
  mesh.world().barrier()->wait();
}

// The end of each rank if `failing` fails.
std::vector<Ended> ends(const Layout& layout, int failing, Where where) {
  std::vector<Ended> all(static_cast<std::size_t>(layout.ranks()));
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    collectives::CommunicatorOptions how;
    how.deadline_seconds = 4;
    const auto group = testing::make_test_communicator(world, store, how);
    Ended& end = all[static_cast<std::size_t>(world.rank)];
    try {
      ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement());
      group->barrier()->wait();  // no rank fails while others still create their groups
      run_rank(layout, mesh, world.rank == failing, where);
    } catch (const Error& error) {
      end = {error.code(), error.what(), now()};
    }
  });
  return all;
}

TEST(Failure, OnOneRankEndsAllRanks) {
  const std::vector<Layout> layouts = {
      {.pp = 2, .tp = 2, .microbatches = 2},
      {.rdp = 2, .pp = 2, .microbatches = 2},
      {.rdp = 2, .pp = 2, .microbatches = 2, .sharding = 3},
  };
  double longest = 0;
  int failing = 0;
  for (const Layout& layout : layouts) {
    failing = 3 - failing;  // so that both ranks fail in each way
    for (const Where where : {Where::building, Where::stage, Where::update, Where::evaluation}) {
      failing = 3 - failing;  // ranks 1 and 2 share no group
      SCOPED_TRACE(fmt::format("{}, {}, rank {}", layout.text(), static_cast<int>(where), failing));
      const std::vector<Ended> all = ends(layout, failing, where);
      const Ended& first = all[static_cast<std::size_t>(failing)];
      EXPECT_THAT(first.text, HasSubstr(kWhy));
      EXPECT_NE(first.code, ErrorCode::aborted);
      for (const Ended& end : all) {
        if (&end == &first) continue;
        EXPECT_EQ(end.code, ErrorCode::aborted) << end.text;
        EXPECT_THAT(end.text,
                    ::testing::StartsWith(fmt::format("rank {} aborted: {}", failing, kWhy)));
        longest = std::max(longest, end.at - first.at);
      }
    }
  }
  EXPECT_LT(longest, 2);
  RecordProperty("seconds", fmt::format("{:.3f}", longest));
}

}  // namespace
}  // namespace shoal::parallel
