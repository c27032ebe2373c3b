// Rows that hold several texts, as PackedDataset makes them: all of one length, with the same
// number of sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/train/data/dataset.h"

namespace shoal::test {

// The texts of a row of 12 tokens. Lengths differ from row to row, and some rows end with padding.
inline std::vector<std::vector<std::int32_t>> packed_texts(std::int64_t row,
                                                           std::int32_t vocabulary) {
  static const std::vector<std::vector<int>> lengths = {{12}, {5, 4, 3}, {2, 6}, {7, 5}, {3, 3, 3}};
  std::vector<std::vector<std::int32_t>> texts;
  std::int32_t next = static_cast<std::int32_t>(row * 7 % vocabulary);
  for (const int length : lengths[static_cast<std::size_t>(row) % lengths.size()]) {
    std::vector<std::int32_t>& text = texts.emplace_back();
    for (int t = 0; t < length; ++t) text.push_back(next = (next * 5 + 3 + t) % vocabulary);
  }
  return texts;
}

class PackedRows final : public Dataset {
 public:
  static constexpr std::int64_t kLength = 12, kSequences = 4;
  PackedRows(std::int64_t size, std::int32_t vocabulary) : size_(size), vocabulary_(vocabulary) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (const std::vector<std::int32_t>& text : packed_texts(index, vocabulary_)) {
      sample.sequences.push_back(static_cast<std::int32_t>(sample.input_ids.size()));
      for (const std::int32_t& id : text) {
        sample.labels.push_back(&id == text.data() ? kIgnoreLabel : id);
        sample.input_ids.push_back(id);
      }
    }
    if (std::ssize(sample.input_ids) < kLength)
      sample.sequences.push_back(static_cast<std::int32_t>(sample.input_ids.size()));
    sample.input_ids.resize(kLength, 1);
    sample.labels.resize(kLength, kIgnoreLabel);
    sample.sequences.resize(kSequences, kLength);
    return sample;
  }

 private:
  std::int64_t size_;
  std::int32_t vocabulary_;
};

// The same texts, one in each row.
class TextRows final : public Dataset {
 public:
  TextRows(std::int64_t rows, std::int32_t vocabulary) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::vector<std::int32_t>& text : packed_texts(row, vocabulary))
        texts_.push_back(std::move(text));
  }
  std::int64_t size() const override { return std::ssize(texts_); }
  Sample get(std::int64_t index) const override {
    return {.input_ids = texts_.at(static_cast<std::size_t>(index))};
  }

 private:
  std::vector<std::vector<std::int32_t>> texts_;
};

}  // namespace shoal::test
