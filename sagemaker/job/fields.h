// Reads objects of a job file. Whatever is wrong is kept with its JSON path, so that all of it is
// said at once.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

using Json = nlohmann::ordered_json;  // keeps the order of keys, which encoded values show

class Problems {
 public:
  // `path`: a JSON pointer, as "/distribution/mpi"; empty: the file.
  void add(std::string_view path, std::string_view text);
  bool empty() const { return lines_.empty(); }
  std::size_t size() const { return lines_.size(); }
  // Throws invalid_argument with every problem, one a line; returns when there are none.
  void check() const;

 private:
  std::vector<std::string> lines_;
  std::set<std::string, std::less<>> known_;
};

// Characters of UTF-8, which is what the service's limits count.
std::size_t characters(std::string_view text);
// "; did you mean x?", or nothing where there is no name at all.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

struct TextRules {
  std::size_t min = 0, max = std::numeric_limits<std::size_t>::max();  // characters
  const char* pattern = nullptr;                                       // the whole text matches it
  const char* looks = nullptr;  // what a text that matches looks like, for the message
  std::vector<std::string> choices = {};
  bool secret = false;  // stands in no message
};
// Checks one text against the rules; true: it keeps to them. A password in a URL keeps to none.
bool check_text(Problems& problems, const std::string& path, const std::string& text,
                const TextRules& rules);

inline constexpr const char* kS3Pattern = "(https|s3)://([^/]+)/?(.*)";
TextRules s3_rules();
TextRules kms_key_rules();

class Fields {
 public:
  // `object` and `problems` outlive this. What is no object is a problem, and reads as empty.
  // `secret`: no value in it stands in a message. So it is with what has a secret's name
  // (secrets.h).
  Fields(const Json& object, std::string path, Problems& problems, bool secret = false);

  // Present and not null. Every name asked for, by this or what follows, is a known key.
  bool has(const std::string& name);
  const Json* value(const std::string& name);  // null: absent
  // Of the type, within the rules; else nothing, and what is wrong is kept.
  std::optional<std::string> text(const std::string& name, const TextRules& rules = {});
  std::optional<std::int64_t> integer(const std::string& name, std::int64_t min, std::int64_t max);
  std::optional<bool> boolean(const std::string& name);
  bool flag(const std::string& name, bool otherwise) { return boolean(name).value_or(otherwise); }
  std::optional<std::vector<std::string>> texts(const std::string& name, std::size_t min_count,
                                                std::size_t max_count, const TextRules& rules = {});
  // An object of texts. All of it is as secret as its values.
  std::optional<std::vector<std::pair<std::string, std::string>>> dictionary(
      const std::string& name, std::size_t max_count, const TextRules& keys,
      const TextRules& values);
  std::optional<Fields> object(const std::string& name, bool secret = false);
  // A name that Amazon's SDK has and Shoal has not; giving it is a problem.
  void refuse(const std::string& name, std::string_view why);

  void problem(const std::string& name, std::string_view text) { problems_->add(path(name), text); }
  std::string path(std::string_view name) const;  // of the field `name`; empty: of the object
  Problems& problems() { return *problems_; }
  // Keys that nobody asked for are problems; those that begin with "_" are comments.
  void finish();

 private:
  bool is_secret(std::string_view name) const;
  const Json* object_;
  std::string path_;
  Problems* problems_;
  bool secret_;
  std::vector<std::string> known_;
};

}  // namespace shoal::sagemaker
