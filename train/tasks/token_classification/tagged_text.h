// Sentences of words with a tag each: CoNLL's columns and JSON lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/train/data/labels.h"
#include "shoal/train/data/records.h"

namespace shoal {

struct TaggedSentence {
  std::vector<std::string> words;
  std::vector<std::string> tags;  // one per word; empty if read without tags
  std::string place;              // "train.conll, line 7"
};

struct TaggedTextOptions {
  bool has_tags = true;                // false: columns after the word are ignored
  std::string words_field = "tokens";  // field names in JSON records and .csv
  std::string tags_field = "ner_tags";
  BadRecords bad = BadRecords::stop;
};

struct TaggedText {
  std::vector<TaggedSentence> sentences;
  std::int64_t skipped = 0;
  std::string first_skipped;
};

// .jsonl, .json and .csv: one sentence per record, with a list of words and a list of tags.
// Other endings: one word per line, the first column is the word and the last its tag, separated by
// a tab or spaces. A blank line or -DOCSTART- ends a sentence. Blanks after a tag are ignored.
//
// A sentence is bad if a line has no tag or an empty one, if the lists differ in length, or if the
// text is not UTF-8. It is also bad if a value has another type: words must be texts, and tags must
// be texts or numbers, all of one type. Bad sentences throw corrupt_data with file and line, or are
// skipped and counted.
TaggedText read_tagged_text(const std::string& path, const TaggedTextOptions& options = {});
// The same for rows that are already open. Also counts the rows that they skipped.
TaggedText read_tagged_rows(const RecordFile& rows, const TaggedTextOptions& options = {});

// The columns of the first word in a file with one word per line; empty if there is none.
std::vector<std::string> first_word_columns(const std::string& path);

// All tags, sorted as in run_ner.
LabelSet discover_tags(const TaggedText& text);

}  // namespace shoal
