#include <cmath>
#include <cstring>

#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Reduction);

constexpr Reduce kOperations[] = {Reduce::sum, Reduce::prod, Reduce::min, Reduce::max};

// Bytes at an odd address, as a packed message may have.
struct Packed {
  explicit Packed(const Host& host)
      : bytes(1 + static_cast<std::size_t>(host.count()) * size_of(host.dtype())) {
    if (host.count()) std::memcpy(data(), host.data(), bytes.size() - 1);
  }
  std::byte* data() { return bytes.data() + 1; }
  std::vector<std::byte> bytes;
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
      // NaN must come through wherever it stands.
      for (std::int64_t i = seed % 5; i < count; i += 11) host.set(i, std::nan(""));
      return host;
    }
  }
}

TEST_P(Reduction, EveryDTypeOperationAndNumberOfSources) {
  const auto reference = make_reference_kernels(), cpu = make_cpu_kernels();
  for (const DType dtype : kAllDTypes)
    for (const Reduce operation : kOperations)
      for (const unsigned sources : {1u, 2u, 3u, 5u})
        for (const std::int64_t count : {0, 1, 3, 63, 64, 1001}) {
          std::vector<Packed> packed;
          for (unsigned s = 0; s < sources; ++s)
            packed.emplace_back(wide_range(count, dtype, s + 1));
          std::vector<const void*> pointers;
          for (Packed& p : packed) pointers.push_back(p.data());
          Host expected(Shape{count}, dtype), poison(Shape{count}, dtype),
              actual(Shape{count}, dtype);
          Packed out(poison);
          reference->reduction().reduce(operation, dtype, pointers, expected.data(), count, {});
          cpu->reduction().reduce(operation, dtype, pointers, out.data(), count, {});
          if (count) std::memcpy(actual.data(), out.data(), out.bytes.size() - 1);
          // The same fold in the same order: equal to the bit, whatever bits a NaN has.
          ASSERT_TRUE(close(actual, expected, kExact))
              << to_string(dtype) << " operation " << static_cast<int>(operation) << ", " << sources
              << " sources of " << count;
          // Into the last source.
          cpu->reduction().reduce(operation, dtype, pointers, packed.back().data(), count, {});
          if (count) std::memcpy(actual.data(), packed.back().data(), out.bytes.size() - 1);
          ASSERT_TRUE(close(actual, expected, kExact)) << "in place";
        }
}

// Every destination, two of them in place of sources, whatever the alignment and the way of
// storing; nothing beside the destinations.
TEST_P(Reduction, IntoAll) {
  const auto reference = make_reference_kernels(), cpu = make_cpu_kernels();
  for (const DType dtype : kAllDTypes)
    for (const std::size_t ranks : {2u, 3u})
      for (const bool past_caches : {false, true})
        for (const std::int64_t count : {0, 1, 63, 1001})
          for (const std::size_t shift : {std::size_t{0}, size_of(dtype), std::size_t{1}}) {
            const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
            std::vector<std::vector<std::byte>> rows;
            std::vector<const void*> sources;
            std::vector<void*> destinations;
            for (std::size_t r = 0; r < ranks + 1; ++r)
              rows.emplace_back(bytes + 192, std::byte{7});
            // The last row is a destination only; `shift` bytes past a cache line.
            std::vector<std::size_t> begins;
            for (std::size_t r = 0; r < rows.size(); ++r) {
              const auto past = reinterpret_cast<std::uintptr_t>(rows[r].data()) % 64;
              begins.push_back(64 + (64 - past) % 64 + shift);
              std::byte* row = rows[r].data() + begins[r];
              const Host values = wide_range(count, dtype, static_cast<unsigned>(r) + 1);
              if (r < ranks && bytes > 0) std::memcpy(row, values.data(), bytes);
              if (r < ranks) sources.push_back(row);
              if (r > 0) destinations.push_back(row);
            }
            Host expected(Shape{count}, dtype), actual(Shape{count}, dtype);
            reference->reduction().reduce(Reduce::sum, dtype, sources, expected.data(), count, {});
            cpu->reduction().reduce_into_all(Reduce::sum, dtype, sources, destinations, count,
                                             past_caches, {});
            for (std::size_t r = 1; r < rows.size(); ++r) {
              if (bytes) std::memcpy(actual.data(), rows[r].data() + begins[r], bytes);
              ASSERT_TRUE(close(actual, expected, kExact))
                  << to_string(dtype) << ", " << count << " of " << ranks << " into row " << r
                  << (past_caches ? " past the caches" : "") << ", shifted by " << shift;
              ASSERT_EQ(rows[r][begins[r] - 1], std::byte{7});
              ASSERT_EQ(rows[r][begins[r] + bytes], std::byte{7});
            }
          }
}

TEST_P(Reduction, RoundsSixteenBitsOnce) {
  // 256 + 1 + 1: rounded after each addition bf16 stays at 256.
  Host a = Host::filled(Shape{9}, DType::bf16, 256), b = Host::filled(Shape{9}, DType::bf16, 1);
  Host out(Shape{9}, DType::bf16);
  const void* sources[] = {a.data(), b.data(), b.data()};
  make_cpu_kernels()->reduction().reduce(Reduce::sum, DType::bf16, sources, out.data(), 9, {});
  for (int i = 0; i < 9; ++i) EXPECT_EQ(out.at(i), 258);
}

TEST_P(Reduction, Scale) {
  const auto reference = make_reference_kernels(), cpu = make_cpu_kernels();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::int64_t count : {0, 1, 63, 1001}) {
      Host expected = Host::random(Shape{count}, dtype, 1);
      Packed packed(expected);
      Host actual(Shape{count}, dtype);
      reference->reduction().scale(dtype, expected.data(), 1.0 / 3, count, {});
      cpu->reduction().scale(dtype, packed.data(), 1.0 / 3, count, {});
      if (count) std::memcpy(actual.data(), packed.data(), packed.bytes.size() - 1);
      ASSERT_TRUE(close(actual, expected, kExact));
    }
  int x = 3;
  EXPECT_EQ(error_of([&] { cpu->reduction().scale(DType::i32, &x, 0.5, 1, {}); }),
            "scale: i32 cannot be scaled; floating dtypes only");
  EXPECT_EQ(error_of([&] { cpu->reduction().reduce(Reduce::sum, DType::i32, {}, &x, 1, {}); }),
            "reduce: there is no source");
}

}  // namespace
}  // namespace shoal::kernels::testing
