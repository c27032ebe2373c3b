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
  TextSpan bytes;  // in the context (the file counts characters)
};

struct SquadQuestion {
  std::string id, text;                   // without leading white space, as in run_qa
  std::int64_t context = 0;               // index in SquadFile::contexts
  std::vector<SquadAnswer> answers = {};  // empty: no answer exists (version 2.0), or a test set
};

struct SquadFile {
  std::string path;
  std::vector<std::string> contexts = {};
  std::vector<SquadQuestion> questions = {};  // in the file's order
  std::int64_t skipped = 0;
  std::string first_skipped = {};
};

struct SquadFileOptions {
  bool version_2_with_negative = false;  // false: a question without an answer is a bad record
  bool needs_answers = true;             // false: a test set; answers may be missing
  BadRecords bad = BadRecords::stop;
};

// Reads {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text",
// "answer_start"}]}]}]}]}, and the flat rows that Hugging Face's `datasets` writes ({"data":
// [{"id", "context", "question", "answers": {"text": [], "answer_start": []}}]}).
//
// A question is a bad record if a field is missing, its id is repeated, or an answer is empty or
// not at answer_start. Bad records throw corrupt_data with file, article and question, or are
// skipped and counted.
SquadFile read_squad(const std::string& path, const SquadFileOptions& options = {});

}  // namespace shoal
