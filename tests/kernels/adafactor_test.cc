// Adafactor: whole parameters against the reference, and parts against whole parameters.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Adafactor);

using State = Placed<StepState>;

State state_of(std::uint32_t step, std::uint32_t skip = 0) {
  StepState state;
  state.step = step;
  state.skip = skip;
  state.learning_rate = 0.01f;
  state.gradient_scale = 0.5f;
  return State(state);
}

MatrixPlace whole_place(const Shape& shape) {
  MatrixPlace place{.count = shape.count()};
  if (shape.rank() < 2 || place.count == 0) return place;
  place.rows = place.part_rows = shape[-2];
  place.columns = place.part_columns = shape[-1];
  return place;
}

// Master, moments, copy of a part of a parameter.
enum Buffer : std::uint8_t { kMaster, kFirst, kSecond, kCopy };

Hosts buffers_of(const MatrixPlace& place, std::int64_t count, DType master, DType copy) {
  const std::int64_t first = place.is_matrix() ? place.all_rows() : count;
  return {Host::random(Shape{count}, master, 1), Host::random(Shape{first}, DType::f32, 2, 0, 0.1),
          Host::random(Shape{place.all_columns()}, DType::f32, 3, 0, 0.1),
          Host(Shape{count}, copy)};
}

// Gradients over four decades; some are 0.
Host gradient_of(std::int64_t count) {
  Host gradient = Host::random(Shape{count}, DType::f32, 4);
  for (std::int64_t i = 0; i < count; ++i)
    gradient.set(i, i % 11 == 5 ? 0 : gradient.at(i) * std::pow(10.0, -(i % 5)));
  return gradient;
}

AdamWArgs args_of(Hosts& buffers, const Host& gradient, const State& state,
                  const std::optional<RoundingPlace>& rounding = {}) {
  AdamWArgs args;
  args.master = buffers[kMaster];
  args.first_moment = buffers[kFirst];
  args.second_moment = buffers[kSecond];
  args.gradient = gradient;
  if (buffers[kCopy].dtype() != DType::f32) args.parameter = buffers[kCopy];
  if (rounding) args.parameter = {};
  args.rounding = rounding;
  args.epsilon = 1e-30;
  args.weight_decay = 0.1;
  args.state = state.get();
  return args;
}

void update(Kernels& k, const AdafactorArgs& args) {
  k.optimizer().adafactor_sums(args, {});
  k.optimizer().adafactor_moments(args, {});
  k.optimizer().adafactor_apply(args, {});
}
void update(Kernels& k, const AdamWArgs& tensor, const MatrixPlace& place) {
  Host sums(Shape{adafactor_room(place)}, DType::f64);
  update(k, {{&tensor, 1}, {&place, 1}, sums});
  EXPECT_TRUE(sums.guards_intact());
}

// Vectors; one row, one column; several blocks of rows and tiles of columns; several matrices.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {0},       {1},         {7},        {50001},    {0, 4},      {1, 1},
      {3, 5},    {1, 1000},   {1000, 1},  {37, 129},  {530, 300},  {2, 700},
      {2, 3, 4}, {5, 40, 33}, {3, 1, 17}, {3, 17, 1}, {2, 2, 5, 6}};
  return all;
}

TEST_P(Adafactor, MatchesTheReference) {
  for (const Shape& shape : shapes())
    for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
      if (has_little_time() && shape.count() > 20'000 && copy != DType::bf16) continue;
      SCOPED_TRACE(to_string(shape));
      const MatrixPlace place = whole_place(shape);
      const Host gradient = gradient_of(shape.count());
      verify(
          "adafactor", [&] { return buffers_of(place, shape.count(), DType::f32, copy); },
          [&](Kernels& k, Hosts& out) {
            for (std::uint32_t step = 1; step <= 3; ++step) {
              const State state = state_of(step);
              update(k, args_of(out, gradient, state), place);
            }
          },
          {4e-6, 4e-6});
    }
}

TEST_P(Adafactor, RoundsAsTheReference) {
  for (const Shape& shape : {Shape{1001}, Shape{37, 129}, Shape{2, 30, 20}}) {
    SCOPED_TRACE(to_string(shape));
    const MatrixPlace place = whole_place(shape);
    const Host gradient = gradient_of(shape.count());
    verify(
        "adafactor", [&] { return buffers_of(place, shape.count(), DType::bf16, DType::bf16); },
        [&](Kernels& k, Hosts& out) {
          const State state = state_of(3);
          update(k, args_of(out, gradient, state, RoundingPlace{{}, 77, 5}), place);
        },
        {4e-6, 4e-6});
  }
}

struct Part {
  MatrixPlace place;
  std::int64_t count = 0;
};

// Columns [from, to) of each of `blocks` blocks of columns, as of a fused projection.
Part columns_of(const Shape& shape, int blocks, std::int64_t from, std::int64_t to) {
  Part part{whole_place(shape), shape[0] * blocks * (to - from)};
  part.place.part_columns = blocks * (to - from);
  ElementPlace& place = part.place.place;
  place.base = from;
  place.run = to - from;
  place.run_step = shape[1] / blocks;
  place.row = part.place.part_columns;
  place.row_step = shape[1];
  return part;
}
// Rows [from, to) of each of `blocks` blocks of rows.
Part rows_of(const Shape& shape, int blocks, std::int64_t from, std::int64_t to) {
  Part part{whole_place(shape), blocks * (to - from) * shape[1]};
  part.place.part_rows = blocks * (to - from);
  ElementPlace& place = part.place.place;
  place.base = from * shape[1];
  place.run = (to - from) * shape[1];
  place.run_step = shape.count() / blocks;
  place.row = part.count;
  return part;
}
// Elements [from, to) of `whole`.
Part run_of(Part whole, std::int64_t from, std::int64_t to) {
  whole.place.place.first = from;
  whole.count = to - from;
  return whole;
}

// Parts that add up their sums are updated as the whole parameter is.
void expect_parts_like_the_whole(const Shape& shape, const std::vector<Part>& parts) {
  const auto kernels = make_test_kernels();
  const MatrixPlace place = whole_place(shape);
  const std::int64_t count = shape.count();
  const Host gradient = gradient_of(count);
  const State state = state_of(3);
  Hosts whole = buffers_of(place, count, DType::f32, DType::bf16);
  const Hosts before = buffers_of(place, count, DType::f32, DType::bf16);
  update(*kernels, args_of(whole, gradient, state), place);

  std::vector<Hosts> mine;
  std::vector<Host> gradients;
  std::vector<std::int64_t> written(static_cast<std::size_t>(count));
  Hosts sums;
  for (const Part& part : parts) {
    mine.push_back(buffers_of(part.place, part.count, DType::f32, DType::bf16));
    gradients.emplace_back(Shape{part.count}, DType::f32);
    sums.emplace_back(Shape{adafactor_room(part.place)}, DType::f64);
    for (std::int64_t i = 0; i < part.count; ++i) {
      const auto at = static_cast<std::int64_t>(part.place.place.element(i));
      ++written[static_cast<std::size_t>(at)];
      mine.back()[kMaster].set(i, before[kMaster].at(at));
      if (!place.is_matrix()) mine.back()[kFirst].set(i, before[kFirst].at(at));
      gradients.back().set(i, gradient.at(at));
    }
  }
  ASSERT_TRUE(std::ranges::all_of(written, [](std::int64_t n) { return n == 1; }));
  const auto add = [&](std::int64_t numbers) {
    for (std::int64_t i = 0; i < numbers; ++i) {
      double sum = 0;
      for (const Host& one : sums) sum += one.at(i);
      for (Host& one : sums) one.set(i, sum);
    }
  };
  const auto each = [&](const auto& call) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const AdamWArgs args = args_of(mine[i], gradients[i], state);
      call(AdafactorArgs{{&args, 1}, {&parts[i].place, 1}, sums[i]});
    }
  };
  OptimizerKernels& k = kernels->optimizer();
  each([&](const AdafactorArgs& args) { k.adafactor_sums(args, {}); });
  add(adafactor_added(place));
  each([&](const AdafactorArgs& args) { k.adafactor_moments(args, {}); });
  add(1);
  each([&](const AdafactorArgs& args) { k.adafactor_apply(args, {}); });
  for (std::size_t p = 0; p < parts.size(); ++p) {
    SCOPED_TRACE(p);
    if (place.is_matrix()) {
      EXPECT_TRUE(close(mine[p][kFirst], whole[kFirst], {1e-6, 0}));
      EXPECT_TRUE(close(mine[p][kSecond], whole[kSecond], {1e-6, 0}));
    }
    int far = 0;
    for (std::int64_t i = 0; i < parts[p].count; ++i) {
      const double want =
          whole[kMaster].at(static_cast<std::int64_t>(parts[p].place.place.element(i)));
      if (std::abs(mine[p][kMaster].at(i) - want) > 2e-6) ++far;
    }
    EXPECT_EQ(far, 0);
  }
}

TEST_P(Adafactor, PartsOfColumnsAreLikeTheWhole) {
  const Shape shape{40, 66};
  expect_parts_like_the_whole(shape, {columns_of(shape, 1, 0, 17), columns_of(shape, 1, 17, 66)});
  expect_parts_like_the_whole(shape, {columns_of(shape, 3, 0, 10), columns_of(shape, 3, 10, 22)});
}

TEST_P(Adafactor, PartsOfRowsAreLikeTheWhole) {
  const Shape shape{66, 40};
  expect_parts_like_the_whole(shape, {rows_of(shape, 1, 0, 17), rows_of(shape, 1, 17, 66)});
  expect_parts_like_the_whole(shape, {rows_of(shape, 3, 0, 10), rows_of(shape, 3, 10, 22)});
}

TEST_P(Adafactor, ShardsAreLikeTheWhole) {
  const auto sharded = [](const Part& whole) {
    return std::vector{run_of(whole, 0, 1), run_of(whole, 1, 1001), run_of(whole, 1001, 1001),
                       run_of(whole, 1001, whole.count)};
  };
  for (const Shape& shape : {Shape{40, 66}, Shape{3, 30, 20}, Shape{700, 300}, Shape{2000}})
    expect_parts_like_the_whole(shape, sharded({whole_place(shape), shape.count()}));
  // Shards of columns.
  const Shape shape{90, 66};
  std::vector<Part> parts = sharded(columns_of(shape, 3, 0, 10));
  for (const Part& part : sharded(columns_of(shape, 3, 10, 22))) parts.push_back(part);
  expect_parts_like_the_whole(shape, parts);
}

// More tensors than one launch accepts.
TEST(AdafactorTensors, AreUpdatedAsBySeparateCalls) {
  const auto kernels = make_test_kernels();
  const State state = state_of(2);
  std::vector<Hosts> results;
  for (const bool at_once : {true, false}) {
    std::vector<Hosts> all;
    std::vector<Host> gradients;
    std::vector<MatrixPlace> places;
    std::int64_t room = 0;
    for (std::int64_t i = 0; i < 400; ++i) {
      const Shape shape = i % 3 == 0 ? Shape{i % 7} : Shape{1 + i % 13, 1 + i % 9};
      places.push_back(whole_place(shape));
      all.push_back(buffers_of(places.back(), shape.count(), DType::f32, DType::bf16));
      gradients.push_back(gradient_of(shape.count()));
      room += adafactor_room(places.back());
    }
    std::vector<AdamWArgs> args;
    for (std::size_t i = 0; i < all.size(); ++i)
      args.push_back(args_of(all[i], gradients[i], state));
    if (at_once) {
      Host sums(Shape{room}, DType::f64);
      update(*kernels, {args, places, sums});
    } else {
      for (std::size_t i = 0; i < args.size(); ++i) update(*kernels, args[i], places[i]);
    }
    Hosts flat;
    for (Hosts& one : all)
      for (Host& host : one) flat.push_back(std::move(host));
    results.push_back(std::move(flat));
  }
  for (std::size_t b = 0; b < results[0].size(); ++b)
    EXPECT_TRUE(close(results[0][b], results[1][b], kExact)) << "buffer " << b;
}

TEST(AdafactorTensors, SkippingChangesNothing) {
  const auto kernels = make_test_kernels();
  const State state = state_of(1, 1);
  for (const Shape& shape : {Shape{50}, Shape{5, 10}}) {
    const MatrixPlace place = whole_place(shape);
    const Host gradient = Host::filled(Shape{50}, DType::f32, 1e30);
    Hosts buffers = buffers_of(place, 50, DType::f32, DType::bf16);
    const Hosts before = buffers_of(place, 50, DType::f32, DType::bf16);
    update(*kernels, args_of(buffers, gradient, state), place);
    for (std::size_t b = 0; b < buffers.size(); ++b)
      EXPECT_TRUE(close(buffers[b], before[b], kExact)) << b;
  }
}

TEST(AdafactorTensors, WrongSizesAreRefused) {
  const auto kernels = make_test_kernels();
  const State state = state_of(1);
  const MatrixPlace place = whole_place({5, 10});
  const Host gradient = gradient_of(50);
  Hosts buffers = buffers_of(place, 50, DType::f32, DType::f32);
  const AdamWArgs args = args_of(buffers, gradient, state);
  Host sums(Shape{15}, DType::f64);
  EXPECT_EQ(
      error_of([&] { kernels->optimizer().adafactor_sums({{&args, 1}, {&place, 1}, sums}, {}); }),
      "adafactor: sums are [15], expected [24]");
  const MatrixPlace other = whole_place({10, 5});
  EXPECT_EQ(
      error_of([&] { kernels->optimizer().adafactor_sums({{&args, 1}, {&other, 1}, sums}, {}); }),
      "adafactor: first_moment has 5 elements, the master has 10");
}

}  // namespace
}  // namespace shoal::kernels::testing
