// Tiny encoders, decoders and encoder-decoders with heads, and made-up rows to train them on.
#pragma once

#include <memory>
#include <string>

#include "train/trainer/mesh_layout.h"

#include "shoal/nn/models/encoder/config.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/tasks/task.h"

namespace shoal::test {

using Head = nn::EncoderTask;

inline constexpr std::int32_t kLabels = 3;

nn::EncoderConfig tiny_encoder(const char* model_type, Head head);

// Made-up rows whose labels can be learned from them. Lengths differ, except for answers: their
// softmaxes run over padding too, so their loss would depend on the other rows of the batch. Each
// text ends with the id 1, which no other place has.
class HeadRows final : public Dataset {
 public:
  HeadRows(std::int64_t size, Head head, bool regression)
      : size_(size), head_(head), regression_(regression) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override;

 private:
  std::int64_t size_;
  Head head_;
  bool regression_;
};

struct HeadCase {
  const char* model_type = "bert";
  Head head = Head::sequence_classification;
  bool regression = false;
  bool lora = false;  // each linear layer has an adapter, and only these and the head learn
  bool is_decoder() const;
  bool is_encoder_decoder() const;
  friend void PrintTo(const HeadCase& test, std::ostream* out) {
    *out << test.model_type << ", " << to_string(test.head) << (test.regression ? ", numbers" : "")
         << (test.lora ? ", adapters" : "");
  }
};

// Four steps. Replicas without parts or options run on the data-parallel engine.
TrainingArguments head_arguments(const std::string& output, Layout layout);

// With 21 samples an epoch's last batches are short. Replicas wrap around the list, so they have
// 24. Evaluation has 11 samples, in batches of 3 a device.
RunOptions head_options(const HeadCase& test, const Layout& layout, std::int64_t samples = 21);

}  // namespace shoal::test
