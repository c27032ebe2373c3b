// Scores of tagged entities, as seqeval computes them in its default mode (which follows CoNLL's
// conlleval): IOB1, IOB2, IOE and IOBES tags, "B-PER".
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace shoal {

// Tags [begin, end] of a sentence are one entity.
struct Entity {
  std::string type;  // "_" of a tag that names none ("B")
  std::int64_t begin = 0, end = 0;
  friend auto operator<=>(const Entity&, const Entity&) = default;
};

// An entity begins at B or S, after O, E or S, and where the type changes; it ends at E or S,
// before B, S or O, and where the type changes.
std::vector<Entity> entities_of(std::span<const std::string> tags);

struct EntityScore {
  double precision = 0, recall = 0, f1 = 0;  // 0 where there is nothing to divide by
  std::int64_t number = 0;                   // entities of the labels
};

struct EntityScores {
  EntityScore overall;                       // over all entities together (micro)
  double accuracy = 0;                       // of tags; NaN of none
  std::map<std::string, EntityScore> types;  // of labels or predictions
};

// By sentence; an entity counts where its type and both ends agree. Another number of sentences or
// of tags in one: invalid_argument.
EntityScores entity_scores(std::span<const std::vector<std::string>> predictions,
                           std::span<const std::vector<std::string>> labels);

}  // namespace shoal
