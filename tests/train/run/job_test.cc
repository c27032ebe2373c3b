// Options and errors of a program that links Shoal, on one rank.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>

#include "shoal/model.h"
#include "shoal/run.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Ended {
  int status = -1;
  std::string out, err;
};

class JobTest : public ::testing::Test {
 protected:
  Ended ended(std::vector<std::string> words, const std::function<void(Job&)>& body) {
    words.insert(words.begin(), "/somewhere/program");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = run(static_cast<int>(words.size()), argv.data(),
                           {{"steps", "100", "number of updates"}, {"name", "x", "a text"}}, body);
    return {status, ::testing::internal::GetCapturedStdout(),
            ::testing::internal::GetCapturedStderr()};
  }
};

TEST_F(JobTest, ReadsItsOptions) {
  const Ended one = ended({"--steps", "7", "--name=a b"}, [](Job& job) {
    EXPECT_EQ(job.rank(), 0);
    EXPECT_EQ(job.ranks(), 1);
    EXPECT_EQ(job.integer("steps"), 7);
    EXPECT_EQ(job.number("steps"), 7.0);
    job.print("{}!\n", job.text("name"));
  });
  EXPECT_EQ(one.status, 0);
  EXPECT_EQ(one.out, "a b!\n");
  EXPECT_EQ(one.err, "");
}

TEST_F(JobTest, RefusesWrongWordsInOneLine) {
  const auto never = [](Job&) { ADD_FAILURE(); };
  const auto refused = [&](std::vector<std::string> words) {
    const Ended end = ended(std::move(words), never);
    EXPECT_EQ(end.status, 2);
    EXPECT_EQ(std::ranges::count(end.err, '\n'), 1);
    return end.err;
  };
  EXPECT_THAT(refused({"--step", "7"}),
              HasSubstr("program: there is no option --step; did you mean steps?"));
  EXPECT_THAT(refused({"7"}), HasSubstr("'7' is no option"));
  EXPECT_THAT(refused({"--steps"}), HasSubstr("--steps has no value"));
}

TEST_F(JobTest, PrintsItsOptions) {
  const Ended end = ended({"--help"}, [](Job&) { ADD_FAILURE(); });
  EXPECT_EQ(end.status, 0);
  EXPECT_THAT(end.out, AllOf(HasSubstr("--steps"), HasSubstr("number of updates (100)")));
}

TEST_F(JobTest, SaysWhyItsBodyFailed) {
  const Ended number = ended({"--steps", "7x"}, [](Job& job) { (void)job.integer("steps"); });
  EXPECT_EQ(number.status, 2);
  EXPECT_EQ(number.err, "program: --steps is '7x'; give a whole number\n");
  const Ended none = ended({}, [](Job& job) { (void)job.text("stepps"); });
  EXPECT_THAT(none.err, HasSubstr("there is no option --stepps; did you mean steps?"));
  const Ended io =
      ended({}, [](Job&) { throw Error(ErrorCode::io, "the disk is full", "make room"); });
  EXPECT_EQ(io.status, 4);
  EXPECT_EQ(io.err, "program: the disk is full; make room\n");
  const Ended other = ended({}, [](Job&) { throw std::runtime_error("odd"); });
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err, "program: unexpected: odd\n");
}

class Ones final : public Dataset {
 public:
  std::int64_t size() const override { return 64; }
  Sample get(std::int64_t index) const override {
    return {.input_ids = std::vector<std::int32_t>(8, static_cast<std::int32_t>(index % 16))};
  }
};

constexpr const char* kSmall = "vocab_size=16,n_layer=2,n_head=2,n_embd=16,n_positions=8";

// The losses of `steps` further steps.
std::vector<double> losses(Job& job, const std::string& directory, int steps,
                           const ParallelPlan& plan = {}) {
  Model model(job, causal_lm("gpt2", kSmall), plan);
  Optimizer optimizer(model);
  Batches batches(model, std::make_shared<Ones>(), {.size = 8});
  const std::int64_t first = optimizer.resume(directory);
  batches.seek(first);
  std::vector<double> all;
  for (int step = 0; step < steps; ++step) {
    all.push_back(model.train(batches.next()));
    EXPECT_GT(optimizer.step(1e-2, 1.0).gradient_norm, 0);
  }
  optimizer.save(directory, first + steps);
  return all;
}

TEST_F(JobTest, ResumesIfACheckpointExists) {
  const testing::TemporaryDirectory scratch;
  std::vector<double> whole, all;
  const Ended end = ended({}, [&](Job& job) {
    whole = losses(job, scratch / "whole", 12);
    all = losses(job, scratch / "parts", 5);
    for (const double loss : losses(job, scratch / "parts", 7)) all.push_back(loss);
  });
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(all, whole);  // bit for bit; an epoch has 8 steps
  EXPECT_LT(whole.back(), 0.9 * whole.front());
}

TEST_F(JobTest, RefusesWhatDoesNotFit) {
  const Ended plan = ended({}, [](Job& job) {
    ParallelPlan two;
    two.mesh.pipeline = 2;
    const Model model(job, causal_lm("gpt2", kSmall), two);
  });
  EXPECT_EQ(plan.status, 2);
  const Ended rows = ended({}, [](Job& job) {
    Model model(job, causal_lm("gpt2", kSmall));
    const Batches batches(model, std::make_shared<Ones>(), {.size = 65});
  });
  EXPECT_EQ(rows.status, 2);
  EXPECT_THAT(rows.err, HasSubstr("the dataset has 64 rows, fewer than a batch of 65"));
  const Ended type = ended({}, [](Job&) { (void)causal_lm("gpt3"); });
  EXPECT_THAT(type.err, HasSubstr("model_type is \"gpt3\""));
}

}  // namespace
}  // namespace shoal
