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
  bool is_json() const { return is_json_; }

  // Calls document(raw, number) for each, in order; `raw` lies in the file, `number` is that of its
  // first line, or of an array's record, from 1. text_of() makes its text.
  void for_each(
      const std::function<void(std::string_view raw, std::int64_t number)>& document) const;
  // Any thread. Of a text with each end of a line as "\n", as Python's open() reads it; of a JSON
  // record its field: corrupt_data, with path and line, if it is no object with that.
  std::string text_of(std::string_view raw, std::int64_t number) const;
  // Whether text_of() would change anything.
  bool needs_text_of() const { return is_json_ || repair_ || has_carriage_returns_; }

 private:
  void for_each_paragraph(
      const std::function<void(std::string_view raw, std::int64_t number)>& document) const;

  WholeSource source_;
  std::string_view text_;
  std::string field_;
  PrepareOptions::Document document_;
  bool is_json_ = false, is_array_ = false, is_plain_ = false;
  bool repair_ = false, has_carriage_returns_ = false;
};

}  // namespace shoal
