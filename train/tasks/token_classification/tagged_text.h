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
  std::vector<std::string> tags;  // as many; empty where the file is read without
  std::string place;              // "train.conll, line 7"
};

struct TaggedTextOptions {
  bool has_tags = true;                // false: columns beyond the word are not looked at
  std::string words_field = "tokens";  // of JSON lines and .csv
  std::string tags_field = "ner_tags";
  BadRecords bad = BadRecords::stop;
};

struct TaggedText {
  std::vector<TaggedSentence> sentences;
  std::int64_t skipped = 0;
  std::string first_skipped;
};

// .jsonl and .json: a sentence a record, two lists. .csv: a sentence a row, spaces between its
// words and between its tags. Every other ending: a word a line, the first of its columns, the tag
// the last; a tab or spaces between them; a blank line or -DOCSTART- ends a sentence. Blanks behind
// a tag are not part of it. A sentence is bad where a line has no tag, the lists differ in length,
// or the text is not UTF-8: corrupt_data with file and line, or left out and counted.
TaggedText read_tagged_text(const std::string& path, const TaggedTextOptions& options = {});

// The columns of the first word of a file that has a word a line; empty: there is none.
std::vector<std::string> first_word_columns(const std::string& path);

// The tags there are, in the order in which run_ner sorts them.
LabelSet discover_tags(const TaggedText& text);

}  // namespace shoal
