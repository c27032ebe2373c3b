// Scores of tagged entities, as seqeval computes them in its default mode (which follows CoNLL's
// conlleval). Tags are IOB1, IOB2, IOE or IOBES, as in "B-PER".
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace shoal {

// An entity: tags [begin, end] of a sentence.
struct Entity {
  std::string type;  // "_" if the tag has no type ("B")
  std::int64_t begin = 0, end = 0;
  friend auto operator<=>(const Entity&, const Entity&) = default;
};

// An entity begins at B or S, at I or E after O, E or S, and where the type changes. It ends at E
// or S, before B, S or O, and where the type changes.
std::vector<Entity> entities_of(std::span<const std::string> tags);

struct EntityScore {
  double precision = 0, recall = 0, f1 = 0;  // 0 if the denominator is 0
  std::int64_t number = 0;                   // entities in the labels
};

struct EntityScores {
  EntityScore overall;                       // over all entities together (micro)
  double accuracy = 0;                       // of tags; NaN without tags
  std::map<std::string, EntityScore> types;  // every type in labels or predictions
};

// Both arguments are by sentence. An entity is correct if its type and both ends agree. Throws
// invalid_argument if the numbers of sentences, or of tags in a sentence, differ.
EntityScores entity_scores(std::span<const std::vector<std::string>> predictions,
                           std::span<const std::vector<std::string>> labels);

}  // namespace shoal
