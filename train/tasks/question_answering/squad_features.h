// Questions and contexts as model inputs: run_qa's features.
//
// [CLS] question [SEP] window of the context [SEP]: a context that is too long becomes several
// features whose windows overlap by doc_stride tokens. Ids and offsets are those of Hugging Face's
// truncation "only_second" with overflow; but byte-level BPE that both trims offsets and adds a
// prefix space (roberta-base does not) there counts the space before each window's first token in.
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
  // A longer question is cut, as BERT's own script does (run_qa refuses what leaves no context).
  std::int64_t max_query_length = 64;
  int threads = 1;  // to tokenize with
};

class SquadDataset final : public Dataset {
 public:
  // One input of the model. Tokens [first_context, first_context + context.end - context.begin) are
  // the context's tokens [context.begin, context.end).
  struct Feature {
    std::int64_t question = 0;  // which of SquadFile::questions
    TextSpan context;
    std::int64_t first_context = 0, tokens = 0;
    std::int32_t start = 0, end = 0;  // the first answer's tokens; without one here, the CLS token
  };

  // Tokenizes everything, and keeps nothing of the tokenizer. A template that has not the question
  // first, or a max_seq_length that leaves the windows no more than doc_stride tokens:
  // invalid_argument with the numbers.
  SquadDataset(std::shared_ptr<const SquadFile> file, const Tokenizer& tokenizer,
               const SquadFeatureOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(features_.size()); }
  // labels: start and end; both kIgnoreLabel where the file has no answers at all.
  Sample get(std::int64_t index) const override;

  const SquadFile& file() const { return *file_; }
  const Feature& feature(std::int64_t index) const;
  // Features [begin, end) of a question.
  TextSpan features_of(std::int64_t question) const;
  // Bytes of the context that the token at `position` of a feature stands for; (0, 0) where that is
  // no token of the context.
  bool is_context(const Feature& feature, std::int64_t position) const;
  TextSpan bytes(const Feature& feature, std::int64_t position) const;

 private:
  void add_features(std::int64_t question);
  std::int32_t cls_position(std::int64_t question_tokens) const;

  std::shared_ptr<const SquadFile> file_;
  SequenceTemplate sequence_;
  TokenId cls_ = 0;
  SquadFeatureOptions options_;
  std::vector<Encoding> contexts_, questions_;
  std::vector<Feature> features_;
  std::vector<std::int64_t> first_feature_;  // of each question, and one beyond
  bool has_answers_ = false;
};

}  // namespace shoal
