// Parsers of train/data and of the tasks' files.
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include "support/source_tree.h"

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/documents.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/records.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/token_shards.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/tasks/classification/text_dataset.h"
#include "shoal/train/tasks/question_answering/squad_features.h"
#include "shoal/train/tasks/question_answering/squad_file.h"
#include "shoal/train/tasks/token_classification/tagged_dataset.h"
#include "shoal/train/tasks/token_classification/tagged_text.h"

namespace shoal::fuzz {
namespace {

const std::shared_ptr<const Tokenizer>& words() {
  static const auto tokenizer =
      load_tokenizer(testing::source_path("tests/golden/tokenizer/word_piece.json"));
  return tokenizer;
}

BadRecords bad_records(Input& input) {
  return input.choice(2) == 0 ? BadRecords::stop : BadRecords::skip;
}

// '0' or '1': what a bad row does; '1': "a" is needed.
RecordOptions record_options(Input& input) {
  RecordOptions options{.bad = bad_records(input)};
  if (input.choice(2) == 1) options.needed = {"a"};
  return options;
}

// Reads what a task may ask of a row.
void read_fields(const Record& record) {
  for (const std::string& name : record.names()) {
    if (!record.has(name)) continue;
    try {
      (void)record.kind(name);
      (void)record.find_text(name);
      if (const std::string* value = record.find_value(name))
        expect(record.value(name) == *value, "value() gives what find_value() does");
      (void)record.values(name);
    } catch (const Error& error) {
      expect(std::string_view(error.what()).starts_with(record.place()), error.what());
    }
    try {
      (void)record.integer(name);
    } catch (const Error&) {
      (void)record.number(name);
    }
  }
}

void read_rows(const RecordFile& file) {
  for (std::int64_t row = 0; row < file.size(); ++row) try {
      read_fields(file.get(row));
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::corrupt_data ||
                 error.code() == ErrorCode::invalid_argument ||
                 error.code() == ErrorCode::not_found,
             error.what());
    }
}

// Rows, and the classes that `shoal train` finds in them.
void check_rows(Input& input, const std::string& name) {
  const RecordOptions options = record_options(input);
  const std::string path = input.file(name, input.rest());
  const auto file = std::make_shared<const RecordFile>(path, options);
  read_rows(*file);
  if (file->format() != RecordFormat::json) (void)RecordFile::first_fields(path);
  TextClassificationOptions task{.columns = default_columns(*file), .bad = options.bad};
  if (!task.columns.label.empty()) task.labels = discover_labels(*file, task.columns.label);
  const TextClassificationDataset data(file, words(), task);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(data.size(), 8); ++i)
    expect(data.get(i).input_ids.size() <= 128, "a sample is not longer than max_seq_length");
}

FUZZ(csv,
     "train/data/csv.cc train/data/csv.h train/data/records.cc "
     "train/tasks/classification/text_dataset.cc") {
  check_rows(input, "rows.csv");
}
FUZZ(tsv, "train/data/records.cc train/data/labels.cc") { check_rows(input, "rows.tsv"); }
FUZZ(jsonl, "train/data/json_records.cc train/data/records.cc") { check_rows(input, "rows.jsonl"); }
FUZZ(json_rows, "train/data/json_records.cc train/data/records.cc") {
  check_rows(input, "rows.json");
}

// '0' to '2': the ending; '0' to '2': the unit of a document; '1': ill-formed UTF-8 is repaired.
FUZZ(documents, "train/data/documents.cc train/data/json_records.cc") {
  constexpr std::array kNames = {"text.txt", "text.jsonl", "text.json"};
  const char* const name = kNames[static_cast<std::size_t>(input.choice(3))];
  PrepareOptions options;
  options.document = static_cast<PrepareOptions::Document>(input.choice(3));
  options.repair_utf8 = input.choice(2) == 1;
  const DocumentSource source(input.file(name, input.rest()), options);
  std::size_t bytes = 0;
  source.for_each([&](std::string_view raw, std::int64_t number) {
    bytes += raw.size();
    expect(number > 0, "numbers count from 1");
    const std::string text = source.text_of(raw, number);
    expect(first_invalid_utf8(text) < 0, "a document is UTF-8");
    if (!source.needs_text_of()) expect(text == raw, "needs_text_of() says what it is");
  });
  expect(bytes <= input.rest().size(), "documents do not overlap");
}

FUZZ(shard_list, "train/data/token_shards.cc") {
  for (const std::string& name : names_in_list(input.file("list.txt", input.rest())))
    expect(!name.empty() && name.front() != '#', "a name is no comment");
}

// '1': with checksums that hold, as a program with bad intentions would write them.
FUZZ(token_file, "train/data/token_file.cc train/data/line_dataset.cc") {
  constexpr std::size_t kTrailer = 128, kContents = 56, kOwn = 88, kMagic = 120;
  const bool sealed = input.choice(2) == 1;
  std::string bytes(input.rest());
  if (sealed && bytes.size() >= kTrailer) {
    const std::size_t at = bytes.size() - kTrailer;
    const auto put = [&](std::size_t where, const Sha256Digest& digest) {
      std::memcpy(bytes.data() + at + where, digest.data(), digest.size());
    };
    put(kContents, sha256(std::string_view(bytes).substr(0, at)));
    put(kOwn, sha256(std::string_view(bytes).substr(at, kOwn)));
    bytes.replace(at + kMagic, 8, "SHOALEND");
  }
  const auto file = TokenFile::open(input.file("a.shoaltok", bytes));
  std::vector<TokenId> ids(static_cast<std::size_t>(file->tokens()));
  file->read(0, ids);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < file->documents(); ++i)
    tokens += file->document(i).end - file->document(i).begin;
  expect(tokens == file->tokens(), "the documents hold all tokens");
  expect(file->tokenizer_hash().size() == 64, "a hash has 64 digits");
  const CausalLmDataset blocks(file, 4, 0, true);
  for (std::int64_t i = 0; i < blocks.size(); ++i) (void)blocks.get(i);
  file->verify();
}

// '0' to '3': options; '0' or '1': what a bad question does.
FUZZ(squad, "train/tasks/question_answering/squad_file.cc") {
  const int mode = input.choice(4);
  const SquadFileOptions options{.version_2_with_negative = (mode & 1) != 0,
                                 .needs_answers = (mode & 2) != 0,
                                 .bad = bad_records(input)};
  const auto file =
      std::make_shared<const SquadFile>(read_squad(input.file("dev.json", input.rest()), options));
  for (const SquadQuestion& question : file->questions) {
    const std::string& context = file->contexts.at(static_cast<std::size_t>(question.context));
    for (const SquadAnswer& answer : question.answers)
      expect(answer.bytes.begin >= 0 && answer.bytes.end <= std::ssize(context) &&
                 context.substr(static_cast<std::size_t>(answer.bytes.begin),
                                static_cast<std::size_t>(answer.bytes.end - answer.bytes.begin)) ==
                     answer.text,
             "an answer is where the file says");
  }
  if (file->questions.empty()) return;
  const SquadDataset data(file, *words(), {.max_seq_length = 32, .doc_stride = 8});
  for (std::int64_t i = 0; i < std::min<std::int64_t>(data.size(), 8); ++i)
    expect(data.get(i).input_ids.size() <= 32, "a feature is not longer than max_seq_length");
}

// '0' to '3': the ending; '1': without tags; '0' or '1': what a bad sentence does.
FUZZ(tagged,
     "train/tasks/token_classification/tagged_text.cc "
     "train/tasks/token_classification/tagged_dataset.cc") {
  constexpr std::array kNames = {"a.conll", "a.jsonl", "a.json", "a.csv"};
  const char* const name = kNames[static_cast<std::size_t>(input.choice(4))];
  const TaggedTextOptions options{.has_tags = input.choice(2) == 0, .bad = bad_records(input)};
  const std::string path = input.file(name, input.rest());
  const auto text = std::make_shared<const TaggedText>(read_tagged_text(path, options));
  for (const TaggedSentence& sentence : text->sentences)
    expect(sentence.tags.size() == (options.has_tags ? sentence.words.size() : 0),
           "each word has a tag");
  (void)first_word_columns(path);
  const TaggedDataset data(text, words(), {.labels = discover_tags(*text)});
  for (std::int64_t i = 0; i < std::min<std::int64_t>(data.size(), 8); ++i)
    expect(data.get(i).input_ids.size() == data.get(i).labels.size(), "each token has a label");
}

}  // namespace
}  // namespace shoal::fuzz
