// The documents of text inputs, one after another. Internal to prepare.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/prepare.h"

namespace shoal {

// One input file, whole and checked.
class DocumentSource {
 public:
  // Ill-formed UTF-8 is refused here, with path and offset, unless `options` wants it repaired.
  DocumentSource(const std::string& path, const PrepareOptions& options);

  std::int64_t bytes() const { return static_cast<std::int64_t>(text_.size()); }
  std::string_view text() const { return text_; }
  bool is_json_lines() const { return is_json_lines_; }

  // Calls document(raw, line) for each, in order; `raw` lies in the file, `line` counts from 1. A
  // JSON record is given as its line: text_of() makes its text.
  void for_each(const std::function<void(std::string_view raw, std::int64_t line)>& document) const;
  // Any thread. corrupt_data, with path and line, for a record that is no object with the field.
  std::string text_of(std::string_view raw, std::int64_t line) const;
  // Whether text_of() would change anything.
  bool needs_text_of() const { return is_json_lines_ || repair_; }

 private:
  WholeSource source_;
  std::string_view text_;
  std::string field_;
  PrepareOptions::Document document_;
  bool is_json_lines_ = false, repair_ = false;
};

}  // namespace shoal
