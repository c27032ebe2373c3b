#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Embedding);

Host ids_of(std::int64_t count, std::int64_t vocabulary) {
  Host ids(Shape{count}, DType::i32);
  // Small ids repeat often, as in text.
  for (std::int64_t i = 0; i < count; ++i)
    ids.set(i, static_cast<double>(i * i * 7 % 31 % vocabulary));
  return ids;
}

TEST_P(Embedding, LooksUpAndAccumulates) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {0, 1, 500})
      for (const std::int64_t columns : {1, 33, 768}) {
        const Host ids = ids_of(count, 40), table = Host::random(Shape{40, columns}, dtype, 1);
        const Shape shape{count, columns};
        for (const bool accumulate : {false, true})
          verify(
              "embedding",
              [&] {
                return Hosts{accumulate ? Host::random(shape, dtype, 2) : Host(shape, dtype)};
              },
              [&](Kernels& k, Hosts& out) {
                k.embedding().embedding(ids, table, out[0], accumulate, {});
              });
      }
}

TEST_P(Embedding, BackwardAddsToTheNamedRows) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {0, 1, 50, 700})
      for (const std::int64_t columns : {1, 33, 768}) {
        const Host ids = ids_of(count, 40), dout = Host::random(Shape{count, columns}, dtype, 1);
        verify(
            "embedding_backward",
            [&] { return Hosts{Host::random(Shape{40, columns}, DType::f32, 2)}; },
            [&](Kernels& k, Hosts& out) {
              k.embedding().embedding_backward(ids, dout, out[0], {});
            },
            {1e-5, 2e-5});
      }
}

// Runs of equal ids are much longer than what a thread or a warp processes at once, and ids have
// three bytes.
TEST_P(Embedding, BackwardSupportsLongRunsAndLargeVocabularies) {
  constexpr std::int64_t kCount = 3000, kColumns = 4, kVocabulary = 70000;
  Host mixed(Shape{kCount}, DType::i32);
  for (std::int64_t i = 0; i < kCount; ++i)
    mixed.set(i, static_cast<double>(i % 3 == 0 ? 65540 : i * 7919 % kVocabulary));
  for (const Host& ids : {mixed, Host::filled(Shape{kCount}, DType::i32, 69999)}) {
    const Host dout = Host::random(Shape{kCount, kColumns}, DType::f32, 1);
    verify(
        "embedding_backward",
        [&] { return Hosts{Host::random(Shape{kVocabulary, kColumns}, DType::f32, 2)}; },
        [&](Kernels& k, Hosts& out) { k.embedding().embedding_backward(ids, dout, out[0], {}); },
        {1e-5, 2e-4});
  }
}

TEST_P(Embedding, AddsPositionGradients) {
  for (const DType dtype : kTrainingDTypes)
    for (const Shape& shape : {Shape{0, 3, 5}, Shape{1, 1, 1}, Shape{4, 50, 770}}) {
      const Host dout = Host::random(shape, dtype, 1);
      verify(
          "position_backward",
          [&] { return Hosts{Host::random(Shape{shape[1] + 2, shape[2]}, DType::f32, 2)}; },
          [&](Kernels& k, Hosts& out) { k.embedding().position_backward(dout, out[0], {}); },
          {1e-6, 1e-6});
    }
}

TEST_P(Embedding, RotatesByPosition) {
  struct Case {
    Shape shape;
    std::int64_t dim, turning;
  };
  for (const DType dtype : kTrainingDTypes)
    for (const auto& [shape, dim, turning] : {Case{Shape{0, 3, 4}, 4, 4},
                                              {Shape{1, 1, 2}, 2, 2},
                                              {Shape{2, 5, 30}, 10, 10},
                                              {Shape{2, 37, 3 * 62}, 62, 62},
                                              {Shape{3, 19, 256}, 128, 128},
                                              {Shape{1, 2, 3}, 3, 2},
                                              {Shape{2, 5, 4 * 20}, 20, 4},
                                              {Shape{2, 9, 3 * 80}, 80, 32},
                                              {Shape{1, 3, 2 * 65}, 65, 64}})
      for (const bool backward : {false, true}) {
        const Host x = Host::random(shape, dtype, 1);
        const Host table = Host::random(Shape{shape[1] + 7, turning}, DType::f32, 2, -1, 1);
        // The positions restart within a row and include the table's last one.
        Host positions(Shape{shape[0], shape[1]}, DType::i32);
        for (std::int64_t i = 0; i < positions.count(); ++i)
          positions.set(i, static_cast<double>(i % 5 == 4 ? shape[1] + 6 : i * 3 % 7));
        bool packed = false;
        const auto turn = [&](Kernels& k, const ConstView& from, View to) {
          RotaryArgs args;
          args.x = from;
          args.table = table;
          if (turning < dim) args.head_dim = dim;
          args.first_position = 6;
          if (packed) args.positions = positions;
          args.backward = backward;
          args.out = to;
          k.embedding().rotary(args, {});
        };
        verify(
            "rotary", [&] { return Hosts{Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) { turn(k, x, out[0]); });
        verify(
            "rotary in place", [&] { return Hosts{x}; },
            [&](Kernels& k, Hosts& out) { turn(k, out[0], out[0]); });
        packed = true;
        verify(
            "rotary at positions", [&] { return Hosts{x}; },
            [&](Kernels& k, Hosts& out) { turn(k, out[0], out[0]); });
      }
  const Host x(Shape{1, 4, 6}, DType::f32), table(Shape{5, 6}, DType::f32);
  Host out(Shape{1, 4, 6}, DType::f32);
  RotaryArgs args;
  args.x = x;
  args.table = table;
  args.first_position = 2;
  args.out = out;
  EXPECT_EQ(error_of([&] { make_test_kernels()->embedding().rotary(args, {}); }),
            "rotary: positions [2, 6) of a table of 5");
  Host positions = Host::filled(Shape{1, 4}, DType::i32, 0);
  const Host fewer(Shape{1, 3}, DType::i32);
  positions.set(2, 5);
  args.positions = fewer;
  EXPECT_EQ(error_of([&] { make_test_kernels()->embedding().rotary(args, {}); }),
            "rotary: positions i32 [1, 3] of [1, 4, 6]");
  args.positions = positions;
  args.head_dim = 4;
  EXPECT_EQ(error_of([&] { make_test_kernels()->embedding().rotary(args, {}); }),
            "rotary: x is [1, 4, 6], the table [5, 6] and a head 4 channels, expected [B, T, H·D], "
            "[positions, R], R even, and D >= R");
  args.head_dim = 0;
  SHOAL_CPU_ONLY("a GPU reports ids outside the table at the next call");
  EXPECT_EQ(error_of([&] { make_test_kernels()->embedding().rotary(args, {}); }),
            "rotary: id 5 at position 2 of 4 is outside [0, 5)");
}

// Selects rows by number, one a sample at its own position, or the same position of every sample.
TEST_P(Embedding, SelectsRows) {
  constexpr std::int64_t kRows = 12;
  Host numbers(Shape{5}, DType::i32), places(Shape{3}, DType::i32);
  for (const auto& [i, number] : {std::pair{0, 7}, {1, -1}, {2, 0}, {3, 11}, {4, 3}})
    numbers.set(i, number);
  // -1 must not select the row before its sample.
  for (const auto& [i, place] : {std::pair{0, 3}, {1, 0}, {2, -1}}) places.set(i, place);
  const std::pair<RowSelection, std::int64_t> none{{.numbers = {}, .stride = 4, .offset = 2}, 3};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32})
    for (const std::int64_t columns : {1, 7, 264}) {
      const Host x = Host::random(Shape{kRows, columns}, dtype, 1);
      for (const int which : {0, 1, 2}) {
        const std::int64_t count = which == 0 ? 5 : 3;
        const Host dout = Host::random(Shape{count, columns}, dtype, 2);
        const auto rows = [&] {
          RowSelection selection = which == 2 ? none.first : RowSelection{};
          if (which == 0) selection.numbers = numbers;
          if (which == 1) selection.numbers = places, selection.stride = 4;
          return selection;
        };
        verify(
            "select_rows", [&] { return Hosts{Host(Shape{count, columns}, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              k.embedding().select_rows(rows(), x, out[0], dtype == DType::i32 ? 0xff : 0, {});
            },
            kExact);
        verify(
            "select_rows_backward", [&] { return Hosts{Host(Shape{kRows, columns}, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              k.embedding().select_rows_backward(rows(), dout, out[0], true, {});
            },
            kExact);
        verify(
            "select_rows_backward into rows that stay", [&] { return Hosts{x}; },
            [&](Kernels& k, Hosts& out) {
              k.embedding().select_rows_backward(rows(), dout, out[0], false, {});
            },
            kExact);
      }
    }
  Host out(Shape{3, 7}, DType::f32);
  const Host x(Shape{kRows, 7}, DType::f32);
  EXPECT_EQ(error_of([&] {
              RowSelection rows{.numbers = {}, .stride = 5, .offset = 2};
              make_test_kernels()->embedding().select_rows(rows, x, out, 0, {});
            }),
            "select_rows: 3 rows with stride 5 and offset 2 of 12");
}

TEST_P(Embedding, CountsPositions) {
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 0}, Shape{1, 1}, Shape{9, 31}, Shape{2, 131}}) {
    Host ids(shape, DType::i32);
    for (std::int64_t i = 0; i < shape.count(); ++i) ids.set(i, static_cast<double>(i * i % 5));
    verify(
        "count_positions", [&] { return Hosts{Host(shape, DType::i32)}; },
        [&](Kernels& k, Hosts& out) { k.embedding().count_positions(ids, 1, out[0], {}); }, kExact);
  }
}

TEST(EmbeddingErrors, NameThePositionAndTheValue) {
  SHOAL_CPU_ONLY("a GPU reports them at a later call (tests/gpu)");
  const auto kernels = make_test_kernels();
  Host ids = ids_of(10, 4), table = Host::random(Shape{4, 2}, DType::f32, 1);
  Host out(Shape{10, 2}, DType::f32);
  ids.set(7, 4);
  EXPECT_EQ(error_of([&] { kernels->embedding().embedding(ids, table, out, false, {}); }),
            "embedding: id 4 at position 7 of 10 is outside [0, 4)");
  ids.set(3, -100);
  EXPECT_EQ(error_of([&] { kernels->embedding().embedding_backward(ids, out, table, {}); }),
            "embedding_backward: id -100 at position 3 of 10 is outside [0, 4)");
  Host some(Shape{10, 2}, DType::f32);
  EXPECT_EQ(error_of([&] {
              RowSelection rows;
              rows.numbers = ids;
              kernels->embedding().select_rows(rows, table, some, 0, {});
            }),
            "select_rows: number 4 at position 7 of 10 is outside [0, 4)");
}

}  // namespace
}  // namespace shoal::kernels::testing
