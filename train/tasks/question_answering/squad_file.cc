#include "shoal/train/tasks/question_answering/squad_file.h"

#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

using nlohmann::json;

template <typename... Args>
[[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(ErrorCode::corrupt_data, format, std::forward<Args>(args)...);
}

const json& need(const json& object, const char* key, const std::string& place) {
  if (!object.is_object()) bad("{}: {} where an object is wanted", place, object.type_name());
  const auto found = object.find(key);
  if (found == object.end()) bad("{}: there is no '{}'", place, key);
  return *found;
}

const json& need_list(const json& object, const char* key, const std::string& place) {
  const json& value = need(object, key, place);
  if (!value.is_array()) bad("{}: '{}' is a {}, not a list", place, key, value.type_name());
  return value;
}

std::string need_text(const json& object, const char* key, const std::string& place) {
  const json& value = need(object, key, place);
  if (!value.is_string()) bad("{}: '{}' is a {}, not a text", place, key, value.type_name());
  return value.get<std::string>();
}

// Maps character indices of a text to bytes. Many answers may point into one long text, so every
// kEach-th position is stored and the rest are counted from the one before.
class CharacterPlaces {
 public:
  explicit CharacterPlaces(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at)
      if (begins(text[at]) && characters_++ % kEach == 0) noted_.push_back(at);
  }
  // The byte of character `index`, including one past the last; -1 outside the text.
  std::int64_t byte_of(std::string_view text, std::int64_t index) const {
    if (index < 0 || index > characters_) return -1;
    if (index == characters_) return static_cast<std::int64_t>(text.size());
    std::size_t at = noted_[static_cast<std::size_t>(index / kEach)];
    for (std::int64_t left = index % kEach; left > 0; --left)
      while (!begins(text[++at])) {
      }
    return static_cast<std::int64_t>(at);
  }

 private:
  static constexpr std::int64_t kEach = 64;
  static bool begins(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }
  std::vector<std::size_t> noted_;
  std::int64_t characters_ = 0;
};

class Reader {
 public:
  Reader(SquadFile& file, const SquadFileOptions& options) : file_(file), options_(options) {}

  void read(const json& data) {
    for (std::size_t i = 0; i < data.size(); ++i) {
      progress::made_of();
      const std::string place = fmt::format("{}, entry {}", file_.path, i);
      if (find_field(data[i], "context") != nullptr)
        guarded([&] { flat_row(data[i], place); });
      else
        article(data[i], place);
    }
  }

 private:
  template <typename Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      if (options_.bad == BadRecords::stop) throw;
      if (file_.skipped++ == 0) file_.first_skipped = error.message();
    }
  }

  void article(const json& entry, const std::string& place) {
    guarded([&] {
      const json& paragraphs = need_list(entry, "paragraphs", place);
      for (std::size_t i = 0; i < paragraphs.size(); ++i)
        guarded([&] { paragraph(paragraphs[i], fmt::format("{}, paragraph {}", place, i)); });
    });
  }

  void paragraph(const json& entry, const std::string& place) {
    const std::string context = need_text(entry, "context", place);
    const json& questions = need_list(entry, "qas", place);
    add_context(context);
    progress::made_of(context.size());
    for (std::size_t i = 0; i < questions.size(); ++i)
      guarded([&] { question(questions[i], fmt::format("{}, question {}", place, i)); });
  }

  void question(const json& entry, const std::string& where) {
    SquadQuestion question = head_of(entry, where);
    const std::string place = fmt::format("{} ({})", where, shortened(question.id));
    const json* const impossible = find_field(entry, "is_impossible");
    if (impossible != nullptr && !impossible->is_boolean())
      bad("{}: is_impossible is {}, not true or false", place, shortened(impossible->dump()));
    const bool is_possible = impossible == nullptr || *impossible == json(false);
    if (find_field(entry, "answers") != nullptr && is_possible)
      for (const json& answer : need_list(entry, "answers", place))
        question.answers.push_back(answer_at(need_text(answer, "text", place),
                                             need(answer, "answer_start", place), place));
    add(std::move(question), place);
  }

  void flat_row(const json& row, const std::string& where) {
    const std::string context = need_text(row, "context", where);
    if (file_.contexts.empty() || file_.contexts.back() != context) add_context(context);
    SquadQuestion question = head_of(row, where);
    const std::string place = fmt::format("{} ({})", where, shortened(question.id));
    if (const json* answers = find_field(row, "answers")) {
      const json& texts = need_list(*answers, "text", place);
      const json& starts = need_list(*answers, "answer_start", place);
      if (texts.size() != starts.size())
        bad("{}: {} answers but {} places", place, texts.size(), starts.size());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (!texts[i].is_string()) bad("{}: answer {} is a {}", place, i, texts[i].type_name());
        question.answers.push_back(answer_at(texts[i].get<std::string>(), starts[i], place));
      }
    }
    add(std::move(question), place);
  }

  void add_context(const std::string& context) {
    file_.contexts.push_back(context);
    places_ = CharacterPlaces(context);
  }

  SquadQuestion head_of(const json& entry, const std::string& place) {
    SquadQuestion question;
    question.id = need_text(entry, "id", place);
    const std::string text = need_text(entry, "question", place);
    question.text = without_spaces_in_front(text, is_python_space);  // run_qa's lstrip()
    question.context = static_cast<std::int64_t>(file_.contexts.size()) - 1;
    return question;
  }

  SquadAnswer answer_at(std::string text, const json& start, const std::string& place) const {
    if (!start.is_number_integer()) bad("{}: answer_start is {}", place, shortened(start.dump()));
    if (text.empty()) bad("{}: an empty answer", place);
    const std::string& context = file_.contexts.back();
    const std::int64_t at = places_.byte_of(context, start.get<std::int64_t>());
    if (at < 0 || !std::string_view(context).substr(static_cast<std::size_t>(at)).starts_with(text))
      bad("{}: the answer '{}' is not at character {} of its context", place, shortened(text),
          start.dump());
    const auto size = static_cast<std::int64_t>(text.size());
    return {std::move(text), {at, at + size}};
  }

  void add(SquadQuestion question, const std::string& place) {
    if (question.answers.empty() && options_.needs_answers && !options_.version_2_with_negative)
      throw Error(ErrorCode::corrupt_data, fmt::format("{}: there is no answer", place),
                  "set version_2_with_negative for questions that have none");
    if (!ids_.insert(question.id).second) bad("{}: this id was met before", place);
    file_.questions.push_back(std::move(question));
  }

  SquadFile& file_;
  const SquadFileOptions& options_;
  CharacterPlaces places_{""};  // of the last context
  std::unordered_set<std::string> ids_;
};

}  // namespace

SquadFile read_squad(const std::string& path, const SquadFileOptions& options) {
  const json root = read_json_file(path);
  SquadFile file;
  file.path = path;
  Reader(file, options).read(need_list(root, "data", path));
  if (file.questions.empty())
    bad("{}: no question of {} entries can be used{}{}", path, root["data"].size(),
        file.skipped > 0 ? "; the first: " : "", file.first_skipped);
  return file;
}

}  // namespace shoal
