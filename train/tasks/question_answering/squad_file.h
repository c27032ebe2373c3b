// SQuAD (Rajpurkar et al. 2016, 2018): articles, paragraphs, questions, accepted answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/train/data/records.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

struct SquadAnswer {
  std::string text;
  TextSpan bytes;  // of the context (the file counts characters)
};

struct SquadQuestion {
  std::string id, text;      // white space at its left is gone, as run_qa drops it
  std::int64_t context = 0;  // which of SquadFile::contexts
  std::vector<SquadAnswer> answers =
      {};  // none: version 2.0 says that there is no answer, or a test
};

struct SquadFile {
  std::string path;
  std::vector<std::string> contexts = {};
  std::vector<SquadQuestion> questions = {};  // in the file's order
  std::int64_t skipped = 0;
  std::string first_skipped = {};
};

struct SquadFileOptions {
  bool version_2_with_negative = false;  // else a question without an answer is a bad record
  bool needs_answers = true;             // false: a test set; then nothing has to be answered
  BadRecords bad = BadRecords::stop;
};

// Reads {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text",
// "answer_start"}]}]}]}]}, and the flat rows that Hugging Face's `datasets` writes ({"data":
// [{"id", "context", "question", "answers": {"text": [], "answer_start": []}}]}). Bad records are
// questions: a field missing, an id met before, an empty answer, an answer that is not where
// answer_start says; corrupt_data with file, article and question, or left out and counted.
SquadFile read_squad(const std::string& path, const SquadFileOptions& options = {});

}  // namespace shoal
