#include "shoal/train/metrics/entities.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

struct Tag {
  char kind = 'O';  // B of "B-PER"
  std::string_view type = "_";
};

// An empty tag is O.
Tag parse(std::string_view text) {
  if (text.empty()) return {};
  Tag tag{text[0], text.substr(1)};
  if (const auto dash = tag.type.find('-'); dash != tag.type.npos)
    tag.type = tag.type.substr(dash + 1);
  if (tag.type.empty()) tag.type = "_";
  return tag;
}

bool is_one_of(char kind, std::string_view kinds) { return kinds.find(kind) != kinds.npos; }

bool ends_between(const Tag& before, const Tag& tag) {
  if (is_one_of(before.kind, "ES")) return true;
  if (is_one_of(before.kind, "BI") && is_one_of(tag.kind, "BSO")) return true;
  return !is_one_of(before.kind, "O.") && before.type != tag.type;
}

bool begins_between(const Tag& before, const Tag& tag) {
  if (is_one_of(tag.kind, "BS")) return true;
  if (is_one_of(before.kind, "ESO") && is_one_of(tag.kind, "EI")) return true;
  return !is_one_of(tag.kind, "O.") && before.type != tag.type;
}

struct Counts {
  std::int64_t right = 0, predicted = 0, labelled = 0;
};

EntityScore score_of(const Counts& counts) {
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  EntityScore score{share(counts.right, counts.predicted), share(counts.right, counts.labelled), 0,
                    counts.labelled};
  const double sum = score.precision + score.recall;
  if (sum > 0) score.f1 = 2 * score.precision * score.recall / sum;
  return score;
}

}  // namespace

std::vector<Entity> entities_of(std::span<const std::string> tags) {
  std::vector<Entity> entities;
  Tag before{'O', ""};
  std::int64_t begin = 0;
  const auto count = static_cast<std::int64_t>(tags.size());
  for (std::int64_t i = 0; i <= count; ++i) {  // the end acts as an O
    const Tag tag = i < count ? parse(tags[static_cast<std::size_t>(i)]) : Tag{};
    if (ends_between(before, tag)) entities.push_back({std::string(before.type), begin, i - 1});
    if (begins_between(before, tag)) begin = i;
    before = tag;
  }
  return entities;
}

EntityScores entity_scores(std::span<const std::vector<std::string>> predictions,
                           std::span<const std::vector<std::string>> labels) {
  SHOAL_CHECK(predictions.size() == labels.size(), "{} predicted sentences for {}",
              predictions.size(), labels.size());
  std::map<std::string, Counts> types;
  std::int64_t right_tags = 0, tags = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    SHOAL_CHECK(predictions[i].size() == labels[i].size(), "sentence {}: {} predicted tags for {}",
                i, predictions[i].size(), labels[i].size());
    for (std::size_t t = 0; t < labels[i].size(); ++t)
      right_tags += predictions[i][t] == labels[i][t];
    tags += static_cast<std::int64_t>(labels[i].size());
    const std::vector<Entity> predicted = entities_of(predictions[i]), are = entities_of(labels[i]);
    for (const Entity& entity : predicted) {
      Counts& counts = types[entity.type];
      ++counts.predicted;
      counts.right += std::find(are.begin(), are.end(), entity) != are.end();
    }
    for (const Entity& entity : are) ++types[entity.type].labelled;
  }
  EntityScores scores;
  Counts all;
  for (const auto& [type, counts] : types) {
    scores.types[type] = score_of(counts);
    all.right += counts.right;
    all.predicted += counts.predicted;
    all.labelled += counts.labelled;
  }
  scores.overall = score_of(all);
  scores.accuracy = tags == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : static_cast<double>(right_tags) / static_cast<double>(tags);
  return scores;
}

}  // namespace shoal
