// Turns questions and contexts into model inputs, which run_qa calls features.
//
// [CLS] question [SEP] window of the context [SEP]: a context that is too long gives several
// features, whose windows overlap by doc_stride tokens. Ids and offsets equal those of Hugging
// Face's truncation "only_second" with overflow, with one exception. Byte-level BPE that both trims
// offsets and adds a prefix space (roberta-base does not) includes the space before each window's
// first token.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/tasks/question_answering/squad_file.h"

namespace shoal {

struct SquadFeatureOptions {
  std::int64_t max_seq_length = 384;
  std::int64_t doc_stride = 128;
  // A longer question is cut, as in BERT's own script (run_qa refuses one that leaves no context).
  std::int64_t max_query_length = 64;
  int threads = 1;  // for tokenizing
};

class SquadDataset final : public Dataset {
 public:
  // One model input. Its tokens [first_context, first_context + context.end - context.begin) are
  // the context's tokens [context.begin, context.end).
  struct Feature {
    std::int64_t question = 0;  // index in SquadFile::questions
    TextSpan context;
    std::int64_t first_context = 0, tokens = 0;
    // Tokens of the first answer; the CLS token if the feature does not contain it.
    std::int32_t start = 0, end = 0;
  };

  // Tokenizes everything. Features are made on request and not stored, because each question has a
  // feature for each window of its context. The tokenizer may be destroyed afterwards. Throws
  // invalid_argument with the numbers if the template does not begin with the question, or if
  // max_seq_length leaves windows of doc_stride tokens or fewer.
  SquadDataset(std::shared_ptr<const SquadFile> file, const Tokenizer& tokenizer,
               const SquadFeatureOptions& options);

  std::int64_t size() const override { return first_feature_.back(); }
  // labels: start and end; both kIgnoreLabel if the file has no answers at all.
  Sample get(std::int64_t index) const override;

  const SquadFile& file() const { return *file_; }
  Feature feature(std::int64_t index) const;
  // Features [begin, end) of a question.
  TextSpan features_of(std::int64_t question) const;
  // Bytes of the context at the token in `position` of a feature; (0, 0) if that is not a token of
  // the context.
  bool is_context(const Feature& feature, std::int64_t position) const;
  TextSpan bytes(const Feature& feature, std::int64_t position) const;

 private:
  // How many features the question has.
  std::int64_t count_features(std::int64_t question);
  std::int64_t room_beside(const Encoding& question) const;
  const Encoding& context_of(std::int64_t question) const;
  std::int32_t cls_position(std::int64_t question_tokens) const;

  std::shared_ptr<const SquadFile> file_;
  SequenceTemplate sequence_;
  TokenId cls_ = 0;
  SquadFeatureOptions options_;
  std::vector<Encoding> contexts_, questions_;
  // First feature of each question, then the number of features.
  std::vector<std::int64_t> first_feature_;
  bool has_answers_ = false;
};

}  // namespace shoal
