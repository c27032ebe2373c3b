#include "shoal/runtime/io/json.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"

namespace shoal {
namespace {

// nlohmann's DOM builder keeps the last of two equal keys and says nothing; a callback sees both.
class DuplicateCheck {
 public:
  DuplicateCheck(std::string_view name, int max_depth) : name_(name), max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth_)
      throw_error(ErrorCode::corrupt_data, "{}: JSON nested deeper than {}", name_, max_depth_);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second)
      throw_error(ErrorCode::corrupt_data, "{}: the key '{}' stands twice in one object", name_,
                  parsed.get<std::string>());
    return true;
  }

 private:
  std::string_view name_;
  int max_depth_;
  std::vector<std::set<std::string, std::less<>>> keys_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name, int max_depth) {
  DuplicateCheck check(name, max_depth);
  try {
    return nlohmann::json::parse(text, std::ref(check));
  } catch (const nlohmann::json::exception& problem) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the number.
    std::string_view what = problem.what();
    if (const auto end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    throw_error(ErrorCode::corrupt_data, "{}: {}", name, what);
  }
}

nlohmann::json read_json_file(const std::string& path) {
  return parse_json(read_text_file(path), path);
}

}  // namespace shoal
