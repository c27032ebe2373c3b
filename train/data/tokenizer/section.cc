#include "shoal/train/data/tokenizer/section.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

constexpr std::int64_t kMaxId = (std::int64_t{1} << 26) - 1;  // bounds the cost of a hostile id

}  // namespace

void corrupt_tokenizer(const std::string& source, const std::string& what) {
  throw_error(ErrorCode::corrupt_data, "{}: {}", source, shortened(what, 400));
}

void unsupported_tokenizer(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::unavailable,
              fmt::format("{}: {} is not supported", source, shortened(what, 400)),
              "docs/guides/data.md lists the parts of a tokenizer.json that Shoal reads; save the "
              "tokenizer with "
              "those");
}

Section::Section(const nlohmann::json& object, std::string where, const std::string& source)
    : object_(object), where_(std::move(where)), source_(source) {
  if (!object.is_object()) corrupt_tokenizer(source, where_ + " is not an object");
}

const nlohmann::json* Section::find(const char* key) {
  known_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& Section::need(const char* key) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) corrupt_tokenizer(source_, fmt::format("{} lacks '{}'", where_, key));
  return *value;
}

std::string Section::text(const char* key) {
  const nlohmann::json& value = need(key);
  if (!value.is_string()) wrong(key, "a string");
  return value.get<std::string>();
}

bool Section::boolean(const char* key, std::optional<bool> otherwise) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) corrupt_tokenizer(source_, fmt::format("{} lacks '{}'", where_, key));
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

TokenId Section::id(const char* key) { return id_of(need(key), fmt::format("{}.{}", where_, key)); }

TokenId Section::id_of(const nlohmann::json& value, const std::string& what) const {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
      value.get<std::int64_t>() > kMaxId)
    corrupt_tokenizer(source_,
                      fmt::format("{} is {}; ids go from 0 to {}", what, value.dump(), kMaxId));
  return value.get<TokenId>();
}

void Section::nothing_else() const {
  for (const auto& [key, value] : object_.items())
    if (!value.is_null() && std::find(known_.begin(), known_.end(), key) == known_.end())
      unsupported_tokenizer(source_, fmt::format("'{}' in {}", key, where_));
}

void Section::wrong(const char* key, const char* wanted) const {
  corrupt_tokenizer(source_, fmt::format("{}.{} is not {}", where_, key, wanted));
}

}  // namespace shoal
