// One object of a tokenizer.json with its location, for messages. nothing_else() rejects keys that
// were never queried, so that no part of a file is silently ignored. Internal to this folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

[[noreturn]] void corrupt_tokenizer(const std::string& source, const std::string& what);
[[noreturn]] void unsupported_tokenizer(const std::string& source, const std::string& what);

class Section {
 public:
  // `object` and `source` must outlive it.
  Section(const nlohmann::json& object, std::string where, const std::string& source);

  const nlohmann::json* find(const char* key);  // null pointer if missing or JSON null
  const nlohmann::json& need(const char* key);
  std::string text(const char* key);
  bool boolean(const char* key, std::optional<bool> otherwise = std::nullopt);
  TokenId id(const char* key);
  TokenId id_of(const nlohmann::json& value, const std::string& what) const;
  void nothing_else() const;
  [[noreturn]] void wrong(const char* key, const char* wanted) const;
  const std::string& where() const { return where_; }
  const std::string& source() const { return source_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  const std::string& source_;
  std::vector<std::string> known_;
};

}  // namespace shoal
