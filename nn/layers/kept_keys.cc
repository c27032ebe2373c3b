// Keys and values that generation keeps between calls.
#include "shoal/nn/layers/decoding.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Tensor selected_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                     std::int64_t used) {
  const Shape& shape = x.shape();
  const Tensor out = context.empty(shape.with(0, std::ssize(rows)), x.dtype());
  const std::int64_t row = x.count() / shape[0] * size_of(x.dtype()),
                     copied = used < 0 ? row : row / shape[1] * used;
  context.run("select_rows", {x}, {out}, [&] {
    DeviceBackend& backend = device_backend(context.stream.device.type);
    const auto* const from = static_cast<const std::byte*>(x.const_view().data);
    auto* const to = static_cast<std::byte*>(out.view().data);
    for (std::int64_t i = 0; i < std::ssize(rows); ++i)
      backend.copy(to + i * row, from + rows[static_cast<std::size_t>(i)] * row,
                   static_cast<std::size_t>(copied), context.stream);
  });
  return out;
}

void select_rows(Context& context, KeyValueCache& cache, std::span<const std::int64_t> rows) {
  if (cache.entries.defined())
    cache.entries = selected_rows(context, cache.entries, rows, cache.length);
}

void Decoding::serve(int block, AttentionInput& self, AttentionInput& cross) {
  Block& kept = blocks[block];
  kept.self.capacity = capacity;
  kept.self.length = position;
  self.cache = &kept.self;
  cross.encoded_keys = &kept.cross;
}

void Decoding::select(Context& context, std::span<const std::int64_t> rows,
                      std::span<const std::int64_t> texts) {
  for (auto& [number, block] : blocks) {
    select_rows(context, block.self, rows);
    EncodedKeys& cross = block.cross;
    if (!cross.keys.defined() || std::ssize(texts) == cross.keys.shape()[0]) continue;
    for (Tensor* tensor : {&cross.keys, &cross.values})
      *tensor = selected_rows(context, *tensor, texts);
  }
}

KeysAndValues keys_and_values(const AttentionInput& input,
                              const std::function<KeysAndValues()>& compute) {
  EncodedKeys* const kept = input.encoded_keys;
  if (kept && kept->keys.defined()) return {Value{kept->keys}, Value{kept->values}};
  KeysAndValues made = compute();
  if (kept) *kept = {made.keys.tensor, made.values.tensor};
  return made;
}

Value attend_to(Context& context, const Value& queries, const KeysAndValues& seen,
                const AttentionInput& input, const AttentionOptions& options) {
  if (input.cache)
    return cached_attention(context, queries, seen.keys, seen.values, *input.cache, options);
  const Shape &in = queries.tensor.shape(), &keys = seen.keys.tensor.shape();
  if (!input.encoded_keys || in[0] == keys[0])
    return attention(context, queries, seen.keys, seen.values, options);
  SHOAL_CHECK(keys[0] > 0 && in[0] % keys[0] == 0,
              "attention: queries {} do not divide among the kept keys {}", to_string(in),
              to_string(keys));
  // Rows with the same keys are queries of one row, so the keys need no copies.
  const Value joined{queries.tensor.reshaped({keys[0], in[0] / keys[0] * in[1], in[2]})};
  return Value{attention(context, joined, seen.keys, seen.values, options).tensor.reshaped(in)};
}

}  // namespace shoal::nn
