#include "shoal/train/checkpoint/tensor_shard.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

// Adds the runs of one box. A run is a row of the box's last dimension, or more if the box spans
// inner dimensions of both tensors. Visits only the rows of the shard: a description of a few bytes
// may have 2^40 rows.
void add_runs(const TensorShard& shard, const nn::ParameterPiece& piece,
              std::vector<TensorRun>& runs) {
  const Shape inner = contiguous_strides(shard.local), outer = contiguous_strides(shard.whole);
  if (piece.sizes.count() == 0) return;
  int last = piece.sizes.rank() - 1;  // a row lies in this dimension
  std::int64_t row = last < 0 ? 1 : piece.sizes[last];
  while (last > 0 && piece.sizes[last] == shard.local[last] &&
         piece.sizes[last] == shard.whole[last])
    row *= piece.sizes[--last];
  const auto place = [&](std::int64_t i) {  // offset of row i in the local and the whole tensor
    std::int64_t local = 0, whole = 0;
    for (int dim = piece.sizes.rank(); dim-- > 0;) {
      std::int64_t at = 0;
      if (dim < last) {
        at = i % piece.sizes[dim];
        i /= piece.sizes[dim];
      }
      local += (piece.local[dim] + at) * inner[dim];
      whole += (piece.whole[dim] + at) * outer[dim];
    }
    return std::pair(local, whole);
  };
  const std::int64_t rows = piece.sizes.count() / row;
  std::int64_t low = 0, high = rows;  // first row that ends after shard.begin
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (place(middle).first + row <= shard.begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (std::int64_t i = low; i < rows; ++i) {
    const auto [local, whole] = place(i);
    const std::int64_t first = std::max(local, shard.begin);
    const std::int64_t end = std::min(local + row, shard.end);
    if (first >= end) break;
    runs.push_back({whole + first - local, first - shard.begin, end - first});
  }
}

std::vector<std::int64_t> numbers(const Shape& shape) {
  return {shape.sizes().begin(), shape.sizes().end()};
}
// Reads one tensor's description. Every field must be there.
class Description {
 public:
  Description(const nlohmann::json& json, std::string_view name) : fields_(json, name) {}

  const nlohmann::json& need(std::string_view key) const {
    const nlohmann::json* value = fields_.find(key);
    if (value == nullptr) fields_.fail(fmt::format("lacks {}", key));
    return *value;
  }
  std::string text(std::string_view key) const {
    std::string value;
    (void)need(key);
    fields_.text(key, value);
    return value;
  }
  std::int64_t integer(std::string_view key) const {
    std::int64_t value = 0;
    (void)need(key);
    fields_.integer(key, value);
    return value;
  }
  Shape shape(std::string_view key) const { return shape_of(key, need(key)); }
  std::vector<nn::ParameterPiece> pieces() const {
    constexpr std::size_t kMostPieces = 256;  // each is compared with each; a fused qkv has 3
    const nlohmann::json& list = need("pieces");
    if (!list.is_array()) fields_.wrong("pieces", list, "a list");
    SHOAL_CHECK(list.size() <= kMostPieces, "it has {} pieces, more than {}", list.size(),
                kMostPieces);
    std::vector<nn::ParameterPiece> pieces;
    for (const nlohmann::json& piece : list) {
      if (!piece.is_array() || piece.size() != 3)
        fields_.wrong("pieces", piece, "a list of three lists");
      pieces.push_back({shape_of("pieces", piece[0]), shape_of("pieces", piece[1]),
                        shape_of("pieces", piece[2])});
    }
    return pieces;
  }

 private:
  Shape shape_of(std::string_view key, const nlohmann::json& value) const {
    if (!value.is_array() || value.size() > Shape::kMaxRank)
      fields_.wrong(key, value, fmt::format("a list of at most {} sizes", Shape::kMaxRank));
    std::vector<std::int64_t> sizes;
    for (const nlohmann::json& size : value) {
      if (!size.is_number_integer() ||
          (size.is_number_unsigned() && !std::in_range<std::int64_t>(size.get<std::uint64_t>())))
        fields_.wrong(key, value, "a list of sizes");
      sizes.push_back(size.get<std::int64_t>());
    }
    return Shape(std::span<const std::int64_t>(sizes));
  }

  JsonFields fields_;
};

}  // namespace

TensorShard shard_of(const nn::Parameter& parameter, std::int64_t begin, std::int64_t end,
                     DType dtype, const std::string& prefix) {
  SHOAL_CHECK(0 <= begin && begin <= end && end <= parameter.shape().count(),
              "elements [{}, {}) of {} of {}", begin, end, parameter.name(),
              to_string(parameter.shape()));
  const auto pieces = parameter.pieces();
  return {prefix + parameter.name(),
          parameter.whole_shape(),
          parameter.shape(),
          {pieces.begin(), pieces.end()},
          begin,
          end,
          dtype};
}

TensorShard shard_of(const nn::Parameter& parameter, DType dtype, const std::string& prefix) {
  return shard_of(parameter, 0, parameter.shape().count(), dtype, prefix);
}

TensorShard whole_tensor(std::string name, const Shape& shape, DType dtype) {
  const std::vector<std::int64_t> zeros(static_cast<std::size_t>(shape.rank()), 0);
  const Shape corner{std::span<const std::int64_t>(zeros)};
  return {std::move(name), shape, shape, {{shape, corner, corner}}, 0, shape.count(), dtype};
}

std::vector<TensorRun> runs_of(const TensorShard& shard) {
  std::vector<TensorRun> runs;
  for (const nn::ParameterPiece& piece : shard.pieces) add_runs(shard, piece, runs);
  std::ranges::sort(runs, {}, &TensorRun::whole);
  std::vector<TensorRun> merged;
  for (const TensorRun& run : runs) {
    if (!merged.empty() && merged.back().whole + merged.back().count == run.whole &&
        merged.back().local + merged.back().count == run.local)
      merged.back().count += run.count;
    else
      merged.push_back(run);
  }
  return merged;
}

std::string tiling_problem(std::span<const TensorShard> shards) {
  if (shards.empty()) return "no part holds it";
  const TensorShard& first = shards.front();
  const std::string name = shortened(first.name);
  std::vector<TensorRun> all;
  for (const TensorShard& one : shards) {
    if (one.whole != first.whole || one.dtype != first.dtype)
      return fmt::format("{}: {} {} in one part, {} {} in another", name, to_string(first.dtype),
                         to_string(first.whole), to_string(one.dtype), to_string(one.whole));
    const auto runs = runs_of(one);
    all.insert(all.end(), runs.begin(), runs.end());
  }
  std::ranges::sort(all, {}, &TensorRun::whole);
  std::int64_t at = 0;
  for (const TensorRun& run : all) {
    if (run.whole != at)
      return fmt::format("{} {}: elements [{}, {}) are in {}", name, to_string(first.whole),
                         std::min(at, run.whole), std::max(at, run.whole),
                         run.whole > at ? "no part" : "two parts");
    at += run.count;
  }
  if (at != first.whole.count())
    return fmt::format("{} {}: elements [{}, {}) are in no part", name, to_string(first.whole), at,
                       first.whole.count());
  return {};
}

nlohmann::ordered_json to_json(const TensorShard& shard) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const nn::ParameterPiece& piece : shard.pieces)
    pieces.push_back({numbers(piece.sizes), numbers(piece.local), numbers(piece.whole)});
  return {{"name", shard.name},
          {"whole", numbers(shard.whole)},
          {"local", numbers(shard.local)},
          {"pieces", pieces},
          {"begin", shard.begin},
          {"end", shard.end},
          {"dtype", to_string(shard.dtype)}};
}

TensorShard shard_from_json(const nlohmann::json& json, const std::string& source) {
  TensorShard shard;
  try {
    const Description described(json, "it");
    shard.name = described.text("name");
    shard.whole = described.shape("whole");
    shard.local = described.shape("local");
    (void)shard.whole.count();  // throws on overflow
    shard.pieces = described.pieces();
    shard.begin = described.integer("begin");
    shard.end = described.integer("end");
    shard.dtype = parse_dtype(described.text("dtype"));
    SHOAL_CHECK(shard.whole.count() <= INT64_MAX / static_cast<std::int64_t>(size_of(shard.dtype)),
                "{} {} are more than 2^63 bytes", to_string(shard.dtype), to_string(shard.whole));
    // The same checks as for a model's parameter.
    nn::Parameter(shard.name, shard.local, {}).set_part(shard.whole, shard.pieces);
  } catch (const Error& problem) {
    throw_error(ErrorCode::corrupt_data, "{}: the description of {} makes no sense: {}", source,
                shard.name.empty() ? "a tensor" : shortened(shard.name), shortened(problem.what()));
  }
  if (shard.begin < 0 || shard.begin > shard.end || shard.end > shard.local.count())
    throw_error(ErrorCode::corrupt_data, "{}: elements [{}, {}) of {} of {}", source, shard.begin,
                shard.end, shortened(shard.name), to_string(shard.local));
  return shard;
}

}  // namespace shoal
