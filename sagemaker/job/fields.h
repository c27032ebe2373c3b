// Reads objects of a job file. Problems are collected with their JSON paths, so that all are
// reported together.
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

using Json = nlohmann::ordered_json;  // keeps key order, which is visible in encoded values

class Problems {
 public:
  // `path`: a JSON pointer such as "/distribution/mpi"; empty: the file.
  void add(std::string_view path, std::string_view text);
  bool empty() const { return lines_.empty(); }
  std::size_t size() const { return lines_.size(); }
  // Throws invalid_argument with all problems, one per line; returns if there are none.
  void check() const;

 private:
  std::vector<std::string> lines_;
  std::set<std::string, std::less<>> known_;
};

// Number of UTF-8 characters, which the service's limits count.
std::size_t characters(std::string_view text);
// "; did you mean x?", or empty without a similar name.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

struct TextRules {
  std::size_t min = 0, max = std::numeric_limits<std::size_t>::max();  // characters
  const char* pattern = nullptr;                                       // must match the whole text
  const char* looks = nullptr;  // describes matching texts, for the message
  std::vector<std::string> choices = {};
  bool secret = false;  // never shown in messages
};
// Checks a text against the rules; true if it conforms. A password in a URL never conforms.
bool check_text(Problems& problems, const std::string& path, const std::string& text,
                const TextRules& rules);

inline constexpr const char* kS3Pattern = "(https|s3)://([^/]+)/?(.*)";
TextRules s3_rules();
TextRules kms_key_rules();

class Fields {
 public:
  // `object` and `problems` must outlive this. A value that is not an object is a problem and reads
  // as empty. With `secret`, messages show no value of it. The same applies to fields with a
  // secret's name (secrets.h).
  Fields(const Json& object, std::string path, Problems& problems, bool secret = false);

  // Present and not null. Every name passed to this or the functions below becomes a known key.
  bool has(const std::string& name);
  const Json* value(const std::string& name);  // null if absent
  // The value if it has this type and conforms to the rules. Otherwise nullopt, and a problem is
  // added.
  std::optional<std::string> text(const std::string& name, const TextRules& rules = {});
  std::optional<std::int64_t> integer(const std::string& name, std::int64_t min, std::int64_t max);
  std::optional<bool> boolean(const std::string& name);
  bool flag(const std::string& name, bool otherwise) { return boolean(name).value_or(otherwise); }
  std::optional<std::vector<std::string>> texts(const std::string& name, std::size_t min_count,
                                                std::size_t max_count, const TextRules& rules = {});
  // An object of texts. A secret name makes all of it secret.
  std::optional<std::vector<std::pair<std::string, std::string>>> dictionary(
      const std::string& name, std::size_t max_count, const TextRules& keys,
      const TextRules& values);
  std::optional<Fields> object(const std::string& name, bool secret = false);
  // Reports a problem if a key of Amazon's SDK that Shoal lacks is present.
  void refuse(const std::string& name, std::string_view why);

  void problem(const std::string& name, std::string_view text) { problems_->add(path(name), text); }
  // Path of the field `name`; with an empty name, of the object.
  std::string path(std::string_view name) const;
  Problems& problems() { return *problems_; }
  // Reports unknown keys as problems, except those that begin with "_" (comments).
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
