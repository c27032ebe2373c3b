// Calls with more tensors than one GPU launch accepts.
#include "support.h"

namespace shoal::kernels::testing {
namespace {

constexpr std::int64_t kTensors = 1400;

std::int64_t size_of_tensor(std::int64_t i) { return i == 700 ? 9001 : i % 7; }

std::int64_t total() {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < kTensors; ++i) sum += size_of_tensor(i);
  return sum;
}

// Views of consecutive tensors within one.
std::vector<View> parts(Host& all) {
  const View whole = all;
  std::vector<View> views;
  std::size_t offset = 0;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    views.push_back({static_cast<std::byte*>(whole.data) + offset, Shape{size_of_tensor(i)},
                     whole.dtype, whole.device});
    offset += static_cast<std::size_t>(size_of_tensor(i)) * size_of(whole.dtype);
  }
  return views;
}

TEST(ManyTensors, AreUpdatedAsBySeparateCalls) {
  const auto kernels = make_test_kernels();
  StepState initial;
  initial.step = 3;
  initial.learning_rate = 0.01f;
  const Placed<StepState> state(initial);
  const Shape shape{total()};
  std::vector<Hosts> results;
  for (const bool at_once : {true, false}) {
    Hosts all{Host::random(shape, DType::f32, 1), Host::random(shape, DType::f32, 2, -0.1, 0.1),
              Host::random(shape, DType::f32, 3, 0, 0.1), Host::random(shape, DType::f32, 4),
              Host(shape, DType::bf16)};
    std::vector<std::vector<View>> views;
    for (Host& one : all) views.push_back(parts(one));
    std::vector<AdamWArgs> args(kTensors);
    for (std::size_t i = 0; i < args.size(); ++i) {
      args[i].master = views[0][i];
      args[i].first_moment = views[1][i];
      args[i].second_moment = views[2][i];
      args[i].gradient = views[3][i];
      if (i % 3 > 0) args[i].parameter = views[4][i];
      args[i].weight_decay = i % 2 == 0 ? 0 : 0.1;
      args[i].state = state.get();
    }
    if (at_once) {
      kernels->optimizer().adamw_many(args, {});
      kernels->optimizer().lion_many(args, {});
    } else {
      for (const AdamWArgs& one : args) {
        kernels->optimizer().adamw(one, {});
        kernels->optimizer().lion_many({&one, 1}, {});
      }
    }
    results.push_back(std::move(all));
  }
  for (std::size_t b = 0; b < results[0].size(); ++b)
    EXPECT_TRUE(close(results[0][b], results[1][b], kExact)) << "buffer " << b;
}

TEST(ManyTensors, AreUpdatedByLambAsBySeparateCalls) {
  const auto kernels = make_test_kernels();
  StepState initial;
  initial.step = 3;
  initial.learning_rate = 0.01f;
  const Placed<StepState> state(initial);
  const Shape shape{total()};
  std::vector<Hosts> results;
  for (const bool at_once : {true, false}) {
    Hosts all{Host::random(shape, DType::f32, 1), Host::random(shape, DType::f32, 2, -0.1, 0.1),
              Host::random(shape, DType::f32, 3, 0, 0.1), Host::random(shape, DType::f32, 4),
              Host(shape, DType::bf16)};
    std::vector<std::vector<View>> views;
    for (Host& one : all) views.push_back(parts(one));
    std::vector<AdamWArgs> args(kTensors);
    for (std::size_t i = 0; i < args.size(); ++i) {
      args[i].master = views[0][i];
      args[i].first_moment = views[1][i];
      args[i].second_moment = views[2][i];
      args[i].gradient = views[3][i];
      if (i % 3 > 0) args[i].parameter = views[4][i];
      args[i].weight_decay = i % 2 == 0 ? 0 : 0.1;
      args[i].state = state.get();
    }
    const std::size_t each = at_once ? args.size() : 1;
    Host squares(Shape{static_cast<std::int64_t>(each), 2}, DType::f64);
    for (std::size_t i = 0; i < args.size(); i += each) {
      const LambArgs lamb{{&args[i], each}, squares};
      kernels->optimizer().lamb_moments(lamb, {});
      kernels->optimizer().lamb_apply(lamb, {});
    }
    results.push_back(std::move(all));
  }
  for (std::size_t b = 0; b < results[0].size(); ++b)
    EXPECT_TRUE(close(results[0][b], results[1][b], kExact)) << "buffer " << b;
}

TEST(ManyTensors, AddUpToOneSum) {
  const auto kernels = make_test_kernels();
  for (const DType dtype : kTrainingDTypes) {
    Host all = Host::random(Shape{total()}, dtype, 1);
    double expected = 0;
    for (std::int64_t i = 0; i < all.count(); ++i) expected += all.at(i) * all.at(i);
    Host out(Shape{1}, DType::f64);
    const std::vector<View> views = parts(all);
    const std::vector<ConstView> xs(views.begin(), views.end());
    kernels->optimizer().sum_of_squares_many(xs, out, {});
    EXPECT_NEAR(out.at(0), expected, 1e-12 * expected);
  }
}

}  // namespace
}  // namespace shoal::kernels::testing
