// `shoal data prepare` as a library call: text in, token files out, with earlier results reused.
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
  std::vector<std::string> validation_inputs;  // if not empty, these form the validation set
  std::string output_directory;                // for the token files; created if missing

  // The unit of a .txt that forms a document. `line` keeps its line end, as run_clm does; `file` is
  // the whole file; `paragraph` ends after a run of blank lines. In JSON, every record is a
  // document.
  enum class Document { line, paragraph, file } document = Document::line;
  std::string text_field = "text";

  // Share of the documents held out for validation if validation_inputs is empty, in [0, 1).
  // `first` takes them from the front, as run_clm's validation_split_percentage does.
  double validation_fraction = 0.0;
  enum class Split { first, last, scattered } split = Split::last;
  std::uint64_t split_seed = 42;  // `scattered` hashes it with each document's ordinal

  // Wraps each document in the tokenizer's template, as run_clm and run_mlm do: Llama's leading
  // <s>, BERT's [CLS] ... [SEP]. GPT-2's template adds nothing.
  bool add_special_tokens = true;
  bool keep_line_ends = true;  // keeps line ends in documents of a .txt; run_mlm strips them
  // Documents of only white space get no tokens, not even the template's. LineDataset then skips
  // them, as run_mlm's line_by_line does.
  bool drops_white_space = false;
  // Ends each document with the tokenizer's eos, unless the template already does. The tokenizer
  // must have an eos.
  bool append_eos = false;
  bool repair_utf8 = false;      // false: ill-formed text is an error with file and offset
  bool overwrite_cache = false;  // prepare again even if nothing changed
  bool may_be_empty = false;     // false: text without any token is an error
  SourceRegistry sources = {};   // opens inputs that are not local paths
  int threads = 1;
  // The calling thread reports progress several times a second: input bytes done and in total, or 0
  // of 0 while it only scans text or tokens. May throw to cancel.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  // Like `progress`, but called while another process on this host prepares the same data.
  std::function<void()> waiting = {};
};

struct PreparedSplit {
  std::string path;  // path of the .shoaltok; empty if there is no such split
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct PreparedData {
  PreparedSplit train, validation;
  bool reused = false;  // true: the files existed already
  std::string key;      // SHA-256 over input bytes, options and tokenizer; part of the file names
  double seconds = 0;
};

// Blocks. Writes <output_directory>/{train,validation}-<key>.shoaltok. Existing files are verified
// in full and prepared again if a checksum is wrong. If several processes of a host request the
// same data at once, one prepares it and the others wait. Without file locks, or on different
// hosts, each process atomically writes the same bytes.
PreparedData prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options);

}  // namespace shoal
