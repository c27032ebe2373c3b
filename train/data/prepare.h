// `shoal data prepare` as a function: text in, token files out, nothing done twice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

struct PrepareOptions {
  std::vector<std::string> inputs;             // .txt; .jsonl, .json with `text_field`
  std::vector<std::string> validation_inputs;  // if any, these are the validation set
  std::string output_directory;                // made if missing; holds the token files

  // What a document of a .txt is. `line` keeps its line end and is what run_clm does; `file` is the
  // whole file; `paragraph` ends with a run of empty lines. In a .jsonl every record is one.
  enum class Document { line, paragraph, file } document = Document::line;
  std::string text_field = "text";

  // Share of the documents for validation, when validation_inputs is empty: 0 (none) up to, but
  // without, 1. `first` takes them from the front, as run_clm's validation_split_percentage does.
  double validation_fraction = 0.0;
  enum class Split { first, last, scattered } split = Split::last;
  std::uint64_t split_seed = 42;  // scattered: each document by a hash of this and its ordinal

  // Each document in the tokenizer's template, as run_clm and run_mlm have it: Llama's <s> before
  // it, BERT's [CLS] ... [SEP] around it. GPT-2's template adds nothing.
  bool add_special_tokens = true;
  bool keep_line_ends = true;  // of a .txt's lines; run_mlm's have none
  // A document of white space has no token, not even the template's: LineDataset leaves it out, as
  // run_mlm's line_by_line does.
  bool drops_white_space = false;
  // End each document with the tokenizer's eos, unless its template has done so. It must have one.
  bool append_eos = false;
  bool repair_utf8 = false;      // else ill-formed text is an error that names file and offset
  bool overwrite_cache = false;  // prepare again although nothing changed
  bool may_be_empty = false;     // else text without a token is an error
  SourceRegistry sources = {};   // opens inputs that are no local paths
  int threads = 1;
  // From the calling thread, several times a second: bytes of input done, and all; 0 of 0 while
  // text or tokens are only read through. May throw to cancel.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  // Likewise, while another process of this host prepares the same.
  std::function<void()> waiting = {};
};

struct PreparedSplit {
  std::string path;  // of the .shoaltok; empty when there is no such split
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct PreparedData {
  PreparedSplit train, validation;
  bool reused = false;  // found as prepared earlier from the same bytes, options and tokenizer
  std::string key;      // SHA-256 of those: part of the file names
  double seconds = 0;
};

// Blocks. The files are <output_directory>/{train,validation}-<key>.shoaltok. What is found there
// is read whole, and prepared anew where its checksum is wrong. Of several processes of a host that
// want the same at once, one prepares and the others wait for it; on a file system without locks
// (and on another host) each writes atomically the same bytes.
PreparedData prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options);

}  // namespace shoal
