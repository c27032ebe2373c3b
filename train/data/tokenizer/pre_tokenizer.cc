#include "shoal/train/data/tokenizer/pre_tokenizer.h"

#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/growth.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

using SplitKind = PreTokenizerStep::Kind;

constexpr std::size_t kUnitsOfAWord = 8;  // cost of a step, in units of Work

// Treats each character that `matches` as a separate match, as Hugging Face does for predicates.
template <typename Matches>
void split_by(std::string_view text, const Matches& matches, SplitBehavior behavior,
              std::vector<std::string_view>& pieces) {
  std::vector<SplitRange> ranges;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const bool matched = matches(c.value);
    if (!ranges.empty() && !matched && !ranges.back().matched)
      ranges.back().end += c.bytes;
    else
      ranges.push_back({at, at + c.bytes, matched});
    at += c.bytes;
  }
  append_pieces(text, ranges, behavior, pieces);
}

void split_at_words(std::string_view text, std::vector<std::string_view>& pieces) {
  enum Run { none, word, other };
  const std::uint8_t* classes = unicode::classes();
  Run run = none;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const std::uint8_t kind = classes[c.value];
    const Run now = (kind & unicode::kWord)                     ? word
                    : (kind & unicode::kKind) == unicode::space ? none
                                                                : other;
    if (now != run) {
      if (run != none) pieces.push_back(text.substr(begin, at - begin));
      begin = at;
      run = now;
    }
    at += c.bytes;
  }
  if (run != none) pieces.push_back(text.substr(begin));
}

void split(const PreTokenizerStep& step, std::string_view text,
           std::vector<std::string_view>& pieces) {
  const auto add = [&](std::string_view piece) { pieces.push_back(piece); };
  switch (step.kind) {
    case SplitKind::gpt2: {
      Gpt2Scanner scanner(text);
      for (std::string_view word = scanner.next(); !word.empty(); word = scanner.next()) add(word);
      return;
    }
    case SplitKind::white_space:
      return split_at_white_space(text, add);
    case SplitKind::words:
      return split_at_words(text, pieces);
    case SplitKind::digits:
      return split_by(
          text,
          [classes = unicode::classes()](std::uint32_t c) {
            return (classes[c] & unicode::kKind) == unicode::number;
          },
          step.individual ? SplitBehavior::isolated : SplitBehavior::contiguous, pieces);
    case SplitKind::punctuation:
      return split_by(
          text,
          [classes = unicode::bert_classes()](std::uint32_t c) {
            return (classes[c] & unicode::bert_punctuation) != 0;
          },
          step.behavior, pieces);
    case SplitKind::bert:
      return split_as_bert(text, add);
    case SplitKind::split:
    case SplitKind::metaspace:
    case SplitKind::byte_level:
      return;
  }
}

bool changes_text(const PreTokenizerStep& step) {
  return step.kind == SplitKind::metaspace || step.kind == SplitKind::byte_level;
}

// Appends the transformed word to `to`, and records the positions of the resulting words there.
void append_metaspace(const PreTokenizerStep& step, std::string_view word,
                      const NormalizedText& from, NormalizedText& to,
                      PreTokenizer::Workspace& workspace) {
  const auto at = static_cast<std::size_t>(word.data() - from.text.data());
  const bool begins_text = !from.origins.empty() && from.origins[at].begin == 0;
  std::size_t begin = to.text.size();
  append_marked(step.metaspace, word, begins_text, from, to);
  while (begin < to.text.size()) {
    const std::size_t end =
        step.metaspace.split
            ? std::min(to.text.find(step.metaspace.replacement, begin + 1), to.text.size())
            : to.text.size();
    workspace.places.emplace_back(begin, end);
    begin = end;
  }
}

void append_byte_level(const PreTokenizerStep& step, std::string_view word,
                       const NormalizedText& from, NormalizedText& to,
                       PreTokenizer::Workspace& workspace) {
  const bool prefix = step.add_prefix_space && word.front() != ' ';
  std::string_view scanned = word;
  if (prefix) {
    workspace.prefixed.assign(1, ' ').append(word);
    scanned = workspace.prefixed;
  }
  const auto begin = static_cast<std::size_t>(word.data() - from.text.data());
  const bool origins = !from.origins.empty();
  // `bytes` is part of `scanned`. The origin of the prefix is the first character.
  const auto add = [&](std::string_view bytes) {
    const std::size_t start = to.text.size();
    for (const char& byte : bytes) {
      const std::string& character = byte_level_alphabet()[static_cast<std::uint8_t>(byte)];
      to.text += character;
      if (!origins) continue;
      const auto at = static_cast<std::size_t>(&byte - scanned.data());
      const std::size_t place = begin + (prefix && at > 0 ? at - 1 : at);
      to.origins.insert(to.origins.end(), character.size(), from.origins[place]);
    }
    workspace.places.emplace_back(start, to.text.size());
  };
  if (!step.use_regex) return add(scanned);
  Gpt2Scanner scanner(scanned);
  for (std::string_view bytes = scanner.next(); !bytes.empty(); bytes = scanner.next()) add(bytes);
}

}  // namespace

const NormalizedText& PreTokenizer::cut(std::string_view part, const NormalizedText& from,
                                        std::size_t of, Workspace& workspace) const {
  const NormalizedText* text = &from;
  workspace.words.assign(1, part);
  const Work work(of);
  for (const PreTokenizerStep& step : steps_) {
    workspace.finer.clear();
    Work::spend(static_cast<std::int64_t>(kUnitsOfAWord * workspace.words.size() + part.size() / 2),
                step.name, of);
    if (changes_text(step)) {
      NormalizedText& next = workspace.texts[text == &workspace.texts[0] ? 1 : 0];
      next.text.clear();
      next.origins.clear();
      workspace.places.clear();
      const auto append = step.kind == SplitKind::metaspace ? append_metaspace : append_byte_level;
      for (const std::string_view word : workspace.words)
        append(step, word, *text, next, workspace);
      if (next.text.size() > most_bytes_of(of)) made_too_much(step.name, of);
      for (const auto& [begin, end] : workspace.places)
        workspace.finer.push_back(std::string_view(next.text).substr(begin, end - begin));
      text = &next;
    } else if (step.kind == SplitKind::split) {
      SplitPattern::Run run(*step.pattern);
      for (const std::string_view word : workspace.words) run.split(word, workspace.finer);
    } else {
      for (const std::string_view word : workspace.words) split(step, word, workspace.finer);
    }
    workspace.words.swap(workspace.finer);
  }
  return *text;
}

bool PreTokenizer::needs_origins() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    return step.kind == SplitKind::metaspace && step.metaspace.prefix == Metaspace::Prefix::first;
  });
}

}  // namespace shoal
