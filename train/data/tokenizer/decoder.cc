#include "shoal/train/data/tokenizer/decoder.h"

#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/growth.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

// Costs of a step per token, in units of Work.
constexpr std::size_t kUnitsOfAToken = 10, kUnitsToClean = 32;

std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t done = 0;
  if (from.empty()) return text;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string::npos;
       done = at + from.size())
    result.append(text, done, at - done).append(to);
  return result.append(text, done);
}

// Replaces the step's matches in all tokens. False: the result exceeds `most` bytes.
bool replace_in(std::vector<std::string>& tokens, const DecoderStep& step, std::size_t most) {
  const SplitPattern pattern =
      step.regex ? *step.regex : SplitPattern::literal(step.pattern, {}, false);
  SplitPattern::Run run(pattern);
  std::size_t made = 0;
  for (std::string& token : tokens) {
    const std::vector<SplitRange>& ranges = run.ranges(token);
    for (const SplitRange& range : ranges) {
      made += range.matched ? step.content.size() : range.end - range.begin;
      if (made > most) return false;
    }
    std::string result;
    for (const SplitRange& range : ranges) {
      if (range.matched)
        result += step.content;
      else
        result.append(token, range.begin, range.end - range.begin);
    }
    token = std::move(result);
  }
  return true;
}

std::optional<char> byte_of_token(const std::string& token) {  // <0x41>
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, problem] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (problem != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

// Replaces each run of byte tokens by the text that it spells; if ill-formed, by one U+FFFD per
// byte.
void join_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto finish = [&] {
    if (first_invalid_utf8(bytes) < 0)
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\uFFFD");
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) finish();
    result.push_back(std::move(token));
  }
  if (!bytes.empty()) finish();
  tokens = std::move(result);
}

std::string stripped(const std::string& text, const DecoderStep& step) {
  const std::string& c = step.pattern;
  std::size_t begin = 0, end = text.size();
  for (std::int64_t i = 0; i < step.start && text.compare(begin, c.size(), c) == 0; ++i)
    begin += c.size();
  for (std::int64_t i = 0;
       i < step.stop && end >= begin + c.size() && text.compare(end - c.size(), c.size(), c) == 0;
       ++i)
    end -= c.size();
  return text.substr(begin, end - begin);
}

// Makes the replacements of Hugging Face's decoders/wordpiece.rs, in its order.
void clean_up(std::string& text) {
  for (const auto& [from, to] :
       std::initializer_list<std::pair<const char*, const char*>>{{" .", "."},
                                                                  {" ?", "?"},
                                                                  {" !", "!"},
                                                                  {" ,", ","},
                                                                  {" ' ", "'"},
                                                                  {" n't", "n't"},
                                                                  {" 'm", "'m"},
                                                                  {" do not", " don't"},
                                                                  {" 's", "'s"},
                                                                  {" 've", "'ve"},
                                                                  {" 're", "'re"}})
    if (text.find(from) != std::string::npos) text = replaced(text, from, to);
}

std::size_t bytes_of(const std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

// False: the step's result exceeds `most` bytes.
bool apply(const DecoderStep& step, std::vector<std::string>& tokens, std::size_t most) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::metaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = replaced(tokens[i], step.pattern, i == 0 && step.drop_first ? "" : " ");
      break;
    case Kind::replace:
      return replace_in(tokens, step, most);
    case Kind::byte_fallback:
      join_bytes(tokens);
      break;
    case Kind::fuse:
      tokens = {fmt::format("{}", fmt::join(tokens, ""))};
      break;
    case Kind::strip:
      for (std::string& token : tokens) token = stripped(token, step);
      break;
    case Kind::byte_level: {
      std::string bytes;
      for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
      tokens = {std::move(bytes)};
      break;
    }
    case Kind::word_piece:
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = word_piece_text(std::move(tokens[i]), i == 0, step.pattern, step.cleanup);
      break;
    case Kind::bpe:
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = replaced(tokens[i], step.pattern, i + 1 == tokens.size() ? "" : " ");
      break;
  }
  return bytes_of(tokens) <= most;
}

}  // namespace

std::string word_piece_text(std::string token, bool is_first, const std::string& prefix,
                            bool cleanup) {
  if (!is_first) {
    if (token.starts_with(prefix))
      token.erase(0, prefix.size());
    else
      token.insert(0, 1, ' ');
  }
  if (cleanup) clean_up(token);
  return token;
}

std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens) {
  const std::size_t given = bytes_of(tokens);
  const Work work(given + tokens.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool cleans = steps[i].kind == DecoderStep::Kind::word_piece && steps[i].cleanup;
    const std::size_t units = (cleans ? kUnitsToClean : kUnitsOfAToken) * tokens.size() + given / 4;
    Work::spend(static_cast<std::int64_t>(units), steps[i].name, given);
    if (!apply(steps[i], tokens, most_bytes_of(given))) made_too_much(steps[i].name, given);
    if (steps[i].kind == DecoderStep::Kind::byte_level && i + 1 < steps.size())
      tokens[0] = repair_utf8(tokens[0]);
  }
  return fmt::format("{}", fmt::join(tokens, ""));
}

}  // namespace shoal
