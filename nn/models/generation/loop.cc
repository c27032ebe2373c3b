#include "shoal/nn/models/generation/loop.h"

#include <algorithm>
#include <memory>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/models/generation/search.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

bool counts_up(std::span<const std::int64_t> values, std::int64_t count) {
  if (std::ssize(values) != count) return false;
  for (std::int64_t i = 0; i < count; ++i)
    if (values[static_cast<std::size_t>(i)] != i) return false;
  return true;
}

// Host values of logits [rows, V].
void read_logits(Context& context, const Tensor& logits, std::vector<float>& values) {
  values.resize(static_cast<std::size_t>(logits.count()));
  Tensor wide = logits;
  if (logits.dtype() != DType::f32) {
    wide = context.empty(logits.shape(), DType::f32);
    context.kernels().elementwise().cast(logits, wide.view(), context.stream);
  }
  copy_to_host(values.data(), wide, context.stream);
}

}  // namespace

std::vector<std::vector<std::int32_t>> generate_tokens(
    Context& context, TextRows& model, const std::vector<std::vector<std::int32_t>>& contexts,
    std::int64_t vocabulary, const GenerationOptions& options, TextNumbers numbers) {
  options.check(vocabulary);
  std::vector<std::unique_ptr<TokenSearch>> searches;
  for (const auto& ids : contexts)
    searches.push_back(make_search(options, ids, numbers.of(std::ssize(searches))));
  std::vector<TokenSearch*> active;
  for (const auto& search : searches) active.push_back(search.get());
  std::vector<float> values;
  Tensor logits;
  // `width`: rows of each text.
  for (std::int64_t width = 1; options.max_new_tokens > 0 && !active.empty();) {
    const std::int64_t present = width * std::ssize(active);
    if (!logits.defined()) logits = model.begin(context);
    SHOAL_CHECK(logits.shape() == Shape({present, vocabulary}), "logits {} of {} rows",
                to_string(logits.shape()), present);
    read_logits(context, logits, values);
    std::vector<std::int64_t> rows, texts;
    std::vector<std::int32_t> tokens;
    for (std::int64_t text = 0; text < std::ssize(active); ++text) {
      TokenSearch& search = *active[static_cast<std::size_t>(text)];
      for (std::int64_t row = 0; row < width; ++row)
        search.score(row, std::span(values).subspan(
                              static_cast<std::size_t>((text * width + row) * vocabulary),
                              static_cast<std::size_t>(vocabulary)));
      const auto next = search.advance();
      if (next.empty()) continue;
      texts.push_back(text);
      for (const auto& one : next) {
        rows.push_back(text * width + (width == 1 ? 0 : one.row));
        tokens.push_back(one.token);
      }
    }
    if (texts.empty()) break;
    if (!counts_up(rows, present)) model.select(context, rows, texts);
    std::vector<TokenSearch*> kept;
    for (const std::int64_t text : texts) kept.push_back(active[static_cast<std::size_t>(text)]);
    active = std::move(kept);
    width = active.front()->rows();
    logits = model.append(context, tokens);
  }
  std::vector<std::vector<std::int32_t>> all;
  for (const auto& search : searches)
    for (auto& tokens : search->results()) all.push_back(std::move(tokens));
  return all;
}

}  // namespace shoal::nn
