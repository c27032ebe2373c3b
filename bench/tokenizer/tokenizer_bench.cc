// Tokenizer benchmarks: encoding on one core and on all, decoding, training, loading.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/data/tokenizer/bpe_trainer.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

const std::string kShared = SHOAL_SOURCE_DIR "/../shared/data/";
const std::string kGolden = SHOAL_SOURCE_DIR "/tests/golden/tokenizer/";

struct Inputs {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string text;
  std::string label;
};

Inputs make_inputs() {
  Inputs inputs;
  if (path_exists(kShared + "gpt2-vocab.json")) {
    inputs.tokenizer =
        load_vocab_and_merges(kShared + "gpt2-vocab.json", kShared + "gpt2-merges.txt");
    inputs.text = read_text_file(kShared + "wikitext2-valid.txt");
    inputs.label = "gpt2, wikitext2-valid";
  } else {
    inputs.tokenizer = load_tokenizer(kGolden + "plain.json");
    inputs.text = read_text_file(kGolden + "genesis.txt");
    inputs.label = "golden vocabulary of 500, genesis";
  }
  return inputs;
}

const Inputs& inputs() {
  static const Inputs made = make_inputs();
  return made;
}

// BERT's WordPiece on the same text.
const Inputs& word_piece_inputs() {
  static const Inputs made = [] {
    const std::string vocab = kShared + "bert-base-uncased-vocab.txt";
    const bool real = path_exists(vocab);
    return Inputs{.tokenizer = load_tokenizer(real ? vocab : kGolden + "word_piece.json"),
                  .text = inputs().text,
                  .label = real ? "bert, wikitext2-valid" : "golden vocabulary of 600, genesis"};
  }();
  return made;
}

// The text repeated to at least `bytes`.
std::string repeated(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += inputs().text;
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

std::string without_spaces(const std::string& text) {
  std::string word;
  std::copy_if(text.begin(), text.end(), std::back_inserter(word),
               [](unsigned char c) { return c > ' '; });
  return word;
}

void report(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  state.SetLabel(inputs().label);
}

void Scan(benchmark::State& state) {
  const std::string& text = inputs().text;
  for (auto _ : state) {
    std::int64_t words = 0;
    Gpt2Scanner scanner(text);
    while (!scanner.next().empty()) ++words;
    benchmark::DoNotOptimize(words);
  }
  report(state, text.size());
}
BENCHMARK(Scan)->Unit(benchmark::kMillisecond);

void EncodeWhole(benchmark::State& state) {
  const std::string text = repeated(16 << 20);
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    inputs().tokenizer->append_ids(text, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  report(state, text.size());
}
BENCHMARK(EncodeWhole)->Unit(benchmark::kMillisecond);

void EncodeLines(benchmark::State& state) {
  const std::string text = repeated(16 << 20);
  const auto lines = lines_of(text);
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    for (const std::string_view line : lines) inputs().tokenizer->append_ids(line, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  report(state, text.size());
}
BENCHMARK(EncodeLines)->Unit(benchmark::kMillisecond);

// A fresh tokenizer: each distinct word is merged once.
void EncodeCold(benchmark::State& state) {
  const std::string& text = inputs().text;
  for (auto _ : state) {
    state.PauseTiming();
    const Inputs fresh = make_inputs();
    std::vector<TokenId> ids;
    ids.reserve(text.size());
    state.ResumeTiming();
    fresh.tokenizer->append_ids(text, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  report(state, text.size());
}
BENCHMARK(EncodeCold)->Unit(benchmark::kMillisecond)->Iterations(5);

void EncodeOffsets(benchmark::State& state) {
  const std::string& text = inputs().text;
  for (auto _ : state)
    benchmark::DoNotOptimize(inputs().tokenizer->encode(text, {.offsets = true}));
  report(state, text.size());
}
BENCHMARK(EncodeOffsets)->Unit(benchmark::kMillisecond);

void WordPieceLines(benchmark::State& state) {
  const Inputs& bert = word_piece_inputs();
  const auto lines = lines_of(bert.text);
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    for (const std::string_view line : lines) bert.tokenizer->append_ids(line, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  report(state, bert.text.size());
  state.SetLabel(bert.label);
}
BENCHMARK(WordPieceLines)->Unit(benchmark::kMillisecond);

void WordPieceOffsets(benchmark::State& state) {
  const Inputs& bert = word_piece_inputs();
  for (auto _ : state)
    benchmark::DoNotOptimize(bert.tokenizer->encode(bert.text, {.offsets = true}));
  report(state, bert.text.size());
  state.SetLabel(bert.label);
}
BENCHMARK(WordPieceOffsets)->Unit(benchmark::kMillisecond);

// Rows of SentencePiece's unigram (ALBERT) and BPE (Llama) kinds, with the given model or else the
// golden one of a few hundred tokens.
void register_pieces(const std::string& kind, const std::string& model, const char* golden) {
  const std::string path = model.empty() ? kGolden + "sentence_piece/" + golden : model;
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(path);
  const std::string& whole = inputs().text;
  const auto row = [&](const char* name, const std::string& text, const auto& work) {
    benchmark::RegisterBenchmark((kind + name).c_str(), [=](benchmark::State& state) {
      for (auto _ : state) work(*tokenizer, text);
      report(state, text.size());
      state.SetLabel(path + ", " + inputs().label);
    })->Unit(benchmark::kMillisecond);
  };
  const auto append_lines = [](const Tokenizer& by, const std::string& text) {
    std::vector<TokenId> ids;
    for (const std::string_view line : lines_of(text)) by.append_ids(line, ids);
    benchmark::DoNotOptimize(ids.data());
  };
  row("Lines", whole, append_lines);
  // For Llama this is one word, with one part.
  row("LongWord", without_spaces(whole), append_lines);
  row("Offsets", whole, [](const Tokenizer& by, const std::string& text) {
    benchmark::DoNotOptimize(by.encode(text, {.offsets = true}));
  });
}

void EncodeBatch(benchmark::State& state) {
  const std::string text = repeated(16 << 20);
  const auto lines = lines_of(text);
  const auto threads = static_cast<int>(state.range(0));
  for (auto _ : state)
    benchmark::DoNotOptimize(encode_batch(*inputs().tokenizer, lines, {}, threads));
  report(state, text.size());
}
BENCHMARK(EncodeBatch)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Arg(1)
    ->Arg(available_cores());

void Decode(benchmark::State& state) {
  std::vector<TokenId> ids;
  inputs().tokenizer->append_ids(inputs().text, ids);
  for (auto _ : state) benchmark::DoNotOptimize(inputs().tokenizer->decode(ids));
  report(state, inputs().text.size());
}
BENCHMARK(Decode)->Unit(benchmark::kMillisecond);

void Train(benchmark::State& state) {
  for (auto _ : state) {
    BpeTrainer trainer({.vocab_size = state.range(0)});
    for (const std::string_view line : lines_of(inputs().text)) trainer.add_text(line);
    benchmark::DoNotOptimize(trainer.train());
  }
  report(state, inputs().text.size());
}
BENCHMARK(Train)->Unit(benchmark::kMillisecond)->Arg(8192);

void Load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(make_inputs());
}
BENCHMARK(Load)->Unit(benchmark::kMillisecond);

void print_ids(const Tokenizer& tokenizer, const char* path) {
  std::vector<TokenId> ids;
  tokenizer.append_ids(read_text_file(path), ids);
  for (const TokenId id : ids) std::printf("%d\n", id);
}

// Options: --ids TEXT, --word-piece-ids TEXT, --model-ids MODEL TEXT print a file's ids, one per
// line, for peer.py. A leading --unigram-model MODEL or --llama-model MODEL sets the rows' model.
// Others are Google Benchmark's.
int run(int argc, char** argv) {
  const auto asks = [&](const char* flag, int arguments) {
    return argc == arguments && std::strcmp(argv[1], flag) == 0;
  };
  if (asks("--ids", 3)) return print_ids(*inputs().tokenizer, argv[2]), 0;
  if (asks("--word-piece-ids", 3)) return print_ids(*word_piece_inputs().tokenizer, argv[2]), 0;
  if (asks("--model-ids", 4)) return print_ids(*load_tokenizer(argv[2]), argv[3]), 0;
  const auto model_of = [&](const char* flag) -> std::string {
    if (argc <= 2 || std::strcmp(argv[1], flag) != 0) return {};
    std::string model = argv[2];
    argv[2] = argv[0];
    argv += 2;
    argc -= 2;
    return model;
  };
  register_pieces("Unigram", model_of("--unigram-model"), "albert");
  register_pieces("Llama", model_of("--llama-model"), "llama");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  try {
    return shoal::run(argc, argv);
  } catch (const shoal::Error& error) {
    std::fprintf(stderr, "shoal_bench_tokenizer: %s\n", error.what());
    return 1;
  }
}
