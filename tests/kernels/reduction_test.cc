#include <cmath>
#include <cstring>

#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Reduction);

constexpr Reduce kOperations[] = {Reduce::sum, Reduce::prod, Reduce::min, Reduce::max};

// Bytes at an odd address, as in a packed message.
class Packed {
 public:
  explicit Packed(const Host& host)
      : count_(static_cast<std::size_t>(host.count()) * size_of(host.dtype())),
        bytes_(1 + count_, std::byte{0}) {
    if (count_) std::memcpy(bytes_.host() + 1, host.host_data(), count_);
  }
  std::byte* data() const { return bytes_.here() + 1; }
  void copy_to(const Host& host) const {
    if (count_) std::memcpy(host.host_data(), bytes_.host() + 1, count_);
  }

 private:
  std::size_t count_;
  Mirrored bytes_;
};

Host wide_range(std::int64_t count, DType dtype, unsigned seed) {
  switch (dtype) {
    case DType::u8:
      return Host::random(Shape{count}, dtype, seed, 0, 255.9);
    case DType::i8:
      return Host::random(Shape{count}, dtype, seed, -128, 127.9);
    case DType::i32:
      return Host::random(Shape{count}, dtype, seed, -2e9, 2e9);
    case DType::i64:
      return Host::random(Shape{count}, dtype, seed, -9e18, 9e18);
    default: {
      Host host = Host::random(Shape{count}, dtype, seed);
      // NaN must propagate from any position.
      for (std::int64_t i = seed % 5; i < count; i += 11) host.set(i, std::nan(""));
      return host;
    }
  }
}

TEST_P(Reduction, SupportsEveryDTypeOperationAndNumberOfSources) {
  const auto reference = make_reference_kernels(), ours = make_test_kernels();
  for (const DType dtype : kAllDTypes)
    for (const Reduce operation : kOperations)
      for (const unsigned sources : {1u, 2u, 3u, 5u})
        for (const std::int64_t count : {0, 1, 3, 63, 64, 1001}) {
          std::vector<Packed> packed;
          for (unsigned s = 0; s < sources; ++s)
            packed.emplace_back(wide_range(count, dtype, s + 1));
          const auto pointers = [&] {
            std::vector<const void*> all;
            for (const Packed& p : packed) all.push_back(p.data());
            return all;
          };
          Host expected(Shape{count}, dtype), poison(Shape{count}, dtype),
              actual(Shape{count}, dtype);
          Packed out(poison);
          {
            const At host(Device::cpu());
            reference->reduction().reduce(operation, dtype, pointers(), expected.data(), count, {});
          }
          ours->reduction().reduce(operation, dtype, pointers(), out.data(), count, {});
          out.copy_to(actual);
          // The fold adds in the same order, so results have the same bits, except that NaNs may
          // differ.
          ASSERT_TRUE(close(actual, expected, kExact))
              << to_string(dtype) << " operation " << static_cast<int>(operation) << ", " << sources
              << " sources of " << count;
          // Writes into the last source.
          ours->reduction().reduce(operation, dtype, pointers(), packed.back().data(), count, {});
          packed.back().copy_to(actual);
          ASSERT_TRUE(close(actual, expected, kExact)) << "in place";
        }
}

// Writes to every destination, two of which are also sources, with all alignments and kinds of
// stores. Bytes next to the destinations must not change.
TEST_P(Reduction, WritesToAllDestinations) {
  const auto reference = make_reference_kernels(), ours = make_test_kernels();
  for (const DType dtype : kAllDTypes)
    for (const std::size_t ranks : {2u, 3u})
      for (const bool past_caches : {false, true})
        for (const std::int64_t count : {0, 1, 63, 1001})
          for (const std::size_t shift : {std::size_t{0}, size_of(dtype), std::size_t{1}}) {
            const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
            std::vector<Mirrored> rows(ranks + 1, Mirrored(bytes + 192, std::byte{7}));
            // The last row is only a destination; `shift` bytes past a cache line.
            const std::size_t begin = 64 + shift;
            for (std::size_t r = 0; r < ranks && bytes > 0; ++r)
              std::memcpy(rows[r].host() + begin,
                          wide_range(count, dtype, static_cast<unsigned>(r) + 1).host_data(),
                          bytes);
            const auto sources = [&] {
              std::vector<const void*> all;
              for (std::size_t r = 0; r < ranks; ++r) all.push_back(rows[r].here() + begin);
              return all;
            };
            Host expected(Shape{count}, dtype), actual(Shape{count}, dtype);
            {
              const At host(Device::cpu());
              reference->reduction().reduce(Reduce::sum, dtype, sources(), expected.data(), count,
                                            {});
            }
            std::vector<void*> destinations;
            for (std::size_t r = 1; r < rows.size(); ++r)
              destinations.push_back(rows[r].here() + begin);
            ours->reduction().reduce_into_all(Reduce::sum, dtype, sources(), destinations, count,
                                              past_caches, {});
            for (std::size_t r = 1; r < rows.size(); ++r) {
              const std::byte* row = rows[r].host();
              if (bytes) std::memcpy(actual.host_data(), row + begin, bytes);
              ASSERT_TRUE(close(actual, expected, kExact))
                  << to_string(dtype) << ", " << count << " of " << ranks << " into row " << r
                  << (past_caches ? " past the caches" : "") << ", shifted by " << shift;
              ASSERT_EQ(row[begin - 1], std::byte{7});
              ASSERT_EQ(row[begin + bytes], std::byte{7});
            }
          }
}

TEST_P(Reduction, RoundsSixteenBitsOnce) {
  // 256 + 1 + 1: rounded after each addition, bf16 stays at 256.
  Host a = Host::filled(Shape{9}, DType::bf16, 256), b = Host::filled(Shape{9}, DType::bf16, 1);
  Host out(Shape{9}, DType::bf16);
  const void* sources[] = {a.data(), b.data(), b.data()};
  make_test_kernels()->reduction().reduce(Reduce::sum, DType::bf16, sources, out.data(), 9, {});
  for (int i = 0; i < 9; ++i) EXPECT_EQ(out.at(i), 258);
}

// Returns the unrounded fold. Rounding it gives the result of reduce().
TEST_P(Reduction, WidensSixteenBits) {
  const auto reference = make_reference_kernels(), ours = make_test_kernels();
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Reduce operation : kOperations)
      for (const unsigned sources : {1u, 2u, 5u})
        for (const std::int64_t count : {0, 1, 7, 64, 1001, 4099})
          for (const std::size_t shift : {std::size_t{0}, std::size_t{2}, std::size_t{1}}) {
            const auto bytes = static_cast<std::size_t>(count) * 2;
            std::vector<Mirrored> rows(sources, Mirrored(bytes + 16, std::byte{0}));
            for (unsigned s = 0; s < sources && bytes > 0; ++s)
              std::memcpy(rows[s].host() + shift, wide_range(count, dtype, s + 1).host_data(),
                          bytes);
            const auto from = [&] {
              std::vector<const void*> all;
              for (const Mirrored& row : rows) all.push_back(row.here() + shift);
              return all;
            };
            Host expected(Shape{count}, DType::f32), actual(Shape{count}, DType::f32);
            {
              const At host(Device::cpu());
              reference->reduction().reduce_widened(
                  operation, dtype, from(), static_cast<float*>(expected.data()), count, {});
            }
            // One element further: no 16-byte pack then begins where a source's pack does.
            Mirrored out(static_cast<std::size_t>(count) * 4 + 8, std::byte{7});
            ours->reduction().reduce_widened(operation, dtype, from(),
                                             reinterpret_cast<float*>(out.here() + (shift ? 4 : 0)),
                                             count, {});
            const std::byte* got = out.host() + (shift ? 4 : 0);
            if (count > 0)
              std::memcpy(actual.host_data(), got, static_cast<std::size_t>(count) * 4);
            ASSERT_TRUE(close(actual, expected, kExact))
                << to_string(dtype) << " operation " << static_cast<int>(operation) << ", "
                << sources << " sources of " << count << ", shifted by " << shift;
            ASSERT_EQ(got[count * 4], std::byte{7});
          }
  float x = 3;
  const void* const source = &x;
  EXPECT_EQ(error_of([&] {
              ours->reduction().reduce_widened(Reduce::sum, DType::f32, {&source, 1}, &x, 1, {});
            }),
            "reduce_widened: f32 is not widened; 16-bit floats only");
}

TEST_P(Reduction, Scales) {
  const auto reference = make_reference_kernels(), ours = make_test_kernels();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::int64_t count : {0, 1, 63, 1001}) {
      Host expected = Host::random(Shape{count}, dtype, 1);
      const Packed packed(expected);
      Host actual(Shape{count}, dtype);
      {
        const At host(Device::cpu());
        reference->reduction().scale(dtype, expected.data(), 1.0 / 3, count, {});
      }
      ours->reduction().scale(dtype, packed.data(), 1.0 / 3, count, {});
      packed.copy_to(actual);
      ASSERT_TRUE(close(actual, expected, kExact));
    }
  int x = 3;
  EXPECT_EQ(error_of([&] { ours->reduction().scale(DType::i32, &x, 0.5, 1, {}); }),
            "scale: i32 cannot be scaled; floating dtypes only");
  EXPECT_EQ(error_of([&] { ours->reduction().reduce(Reduce::sum, DType::i32, {}, &x, 1, {}); }),
            "reduce: there is no source");
}

}  // namespace
}  // namespace shoal::kernels::testing
