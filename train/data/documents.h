// Iterates over the documents of text inputs. Internal to prepare.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/prepare.h"

namespace shoal {

// One complete, validated input file.
class DocumentSource {
 public:
  // Rejects ill-formed UTF-8 with path and offset, unless `options` asks for repair.
  DocumentSource(const std::string& path, const PrepareOptions& options);

  std::int64_t bytes() const { return static_cast<std::int64_t>(text_.size()); }
  std::string_view text() const { return text_; }
  bool is_json() const { return is_json_; }

  // Calls document(raw, number) for each document in order. `raw` points into the file. `number` is
  // 1-based: the document's first line, or the record of a JSON array. text_of() converts `raw` to
  // text.
  void for_each(
      const std::function<void(std::string_view raw, std::int64_t number)>& document) const;
  // Text: every line end becomes "\n", as with Python's open(). JSON: the text field of the record;
  // corrupt_data with path and line if it is missing. Thread-safe.
  std::string text_of(std::string_view raw, std::int64_t number) const;
  // Whether text_of() may differ from the raw document.
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
