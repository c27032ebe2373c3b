#include "play.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>

#include "shoal/collectives/algorithm/canonical_tree.h"

namespace shoal::collectives {
namespace {

template <typename... Arguments>
[[noreturn]] void wrong(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw std::logic_error(fmt::format(format, std::forward<Arguments>(arguments)...));
}

float as_float(Element element) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(element));
}
Element as_element(float value) { return std::bit_cast<std::uint32_t>(value); }

// For each instruction, the earlier ones it is ordered after by `after`, as bits.
class Order {
 public:
  explicit Order(const algorithm::Program& program, int rank)
      : words_((program.instructions.size() + 63) / 64),
        bits_(words_ * program.instructions.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i)
      for (const int other : program.instructions[i].after) {
        if (other < 0 || static_cast<std::size_t>(other) >= i)
          wrong("rank {}: instruction {} waits for {}", rank, i, other);
        const auto before = static_cast<std::size_t>(other);
        for (std::size_t w = 0; w < words_; ++w)
          bits_[i * words_ + w] |= bits_[before * words_ + w];
        bits_[i * words_ + before / 64] |= std::uint64_t{1} << (before % 64);
      }
  }
  bool ordered(std::size_t earlier, std::size_t later) const {
    return (bits_[later * words_ + earlier / 64] >> (earlier % 64)) & 1;
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

class Memory {
 public:
  Memory(PlayedRank& rank, int number) : rank_(rank), number_(number) {
    spaces_[0].assign(rank.memory.size(), 0);
    for (std::int64_t i = 0; i < rank.inputs; ++i)
      spaces_[0].at(static_cast<std::size_t>(rank.input_at + i)) = 1;
    scratch_.resize(static_cast<std::size_t>(rank.program.scratch));
    partial_.resize(static_cast<std::size_t>(rank.program.partial));
    spaces_[1].assign(scratch_.size(), 0);
    spaces_[2].assign(partial_.size(), 0);
  }

  // Memory spaces: input and output share 0, scratch is 1, partial is 2.
  static std::size_t space_of(algorithm::Space space) {
    return space == algorithm::Space::scratch ? 1 : space == algorithm::Space::partial ? 2 : 0;
  }
  std::int64_t place(const algorithm::Piece& piece) const {
    return piece.begin + (piece.space == algorithm::Space::input    ? rank_.input_at
                          : piece.space == algorithm::Space::output ? rank_.output_at
                                                                    : 0);
  }
  void check_bounds(const algorithm::Piece& piece, std::size_t instruction) const {
    const std::int64_t room = piece.space == algorithm::Space::input     ? rank_.inputs
                              : piece.space == algorithm::Space::output  ? rank_.outputs
                              : piece.space == algorithm::Space::scratch ? rank_.program.scratch
                                                                         : rank_.program.partial;
    if (piece.begin < 0 || piece.count < 0 || piece.begin + piece.count > room)
      wrong("rank {}: instruction {} reaches [{}, {}) of {} elements", number_, instruction,
            piece.begin, piece.begin + piece.count, room);
  }
  Element read(const algorithm::Piece& piece, std::int64_t i) const {
    const std::size_t space = space_of(piece.space);
    const auto at = static_cast<std::size_t>(place(piece) + i);
    if (!spaces_[space][at])
      wrong("rank {}: element {} of space {} is read before it is written", number_, at, space);
    return data(space)[at];
  }
  void write(const algorithm::Piece& piece, std::int64_t i, Element element) {
    const std::size_t space = space_of(piece.space);
    const auto at = static_cast<std::size_t>(place(piece) + i);
    spaces_[space][at] = 1;
    data(space)[at] = element;
  }

 private:
  std::vector<Element>& data(std::size_t space) {
    return space == 0 ? rank_.memory : space == 1 ? scratch_ : partial_;
  }
  const std::vector<Element>& data(std::size_t space) const {
    return space == 0 ? rank_.memory : space == 1 ? scratch_ : partial_;
  }
  PlayedRank& rank_;
  int number_;
  std::vector<Element> scratch_, partial_;
  std::array<std::vector<char>, 3> spaces_;  // which elements have been written
};

bool touches_nothing(const algorithm::Instruction& instruction, const Memory& memory) {
  return instruction.verb == algorithm::Verb::copy &&
         Memory::space_of(instruction.sources[0].space) ==
             Memory::space_of(instruction.target.space) &&
         memory.place(instruction.sources[0]) == memory.place(instruction.target);
}

void check_shape(const algorithm::Instruction& instruction, std::size_t number, int rank) {
  const std::size_t sources = instruction.sources.size();
  const bool right = instruction.verb == algorithm::Verb::receive  ? sources == 0
                     : instruction.verb == algorithm::Verb::reduce ? sources >= 2
                                                                   : sources == 1;
  if (!right) wrong("rank {}: instruction {} has {} sources", rank, number, sources);
  if (instruction.verb == algorithm::Verb::copy || instruction.verb == algorithm::Verb::reduce)
    for (const algorithm::Piece& source : instruction.sources)
      if (source.count != instruction.target.count)
        wrong("rank {}: instruction {} makes {} elements of {}", rank, number,
              instruction.target.count, source.count);
  if (instruction.verb != algorithm::Verb::send &&
      instruction.target.space == algorithm::Space::input)
    wrong("rank {}: instruction {} writes into the input", rank, number);
}

void check_races(const algorithm::Program& program, const Memory& memory, int rank) {
  struct Access {
    std::int64_t begin, end;
    std::size_t instruction;
    bool writes;
  };
  const Order order(program, rank);
  std::array<std::vector<Access>, 3> accesses;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const algorithm::Instruction& instruction = program.instructions[i];
    check_shape(instruction, i, rank);
    const auto note = [&](const algorithm::Piece& piece, bool writes) {
      memory.check_bounds(piece, i);
      const std::int64_t begin = memory.place(piece);
      if (piece.count > 0 && !touches_nothing(instruction, memory))
        accesses[Memory::space_of(piece.space)].push_back({begin, begin + piece.count, i, writes});
    };
    for (const algorithm::Piece& source : instruction.sources) note(source, false);
    if (instruction.verb != algorithm::Verb::send) note(instruction.target, true);
    if (instruction.verb != algorithm::Verb::reduce) continue;
    for (const algorithm::Piece& source : instruction.sources)
      if (instruction.in_tree && source.space == algorithm::Space::partial)
        wrong("rank {}: instruction {} sums a partial by the tree", rank, i);
    for (const algorithm::Piece& source : instruction.sources) {  // identical or disjoint
      const std::int64_t a = memory.place(source), b = memory.place(instruction.target);
      if (Memory::space_of(source.space) == Memory::space_of(instruction.target.space) && a != b &&
          a < b + source.count && b < a + source.count)
        wrong("rank {}: instruction {} reduces onto half of a source", rank, i);
    }
  }
  for (auto& list : accesses) {
    std::ranges::sort(list, {}, &Access::begin);
    for (std::size_t a = 0; a < list.size(); ++a)
      for (std::size_t b = a + 1; b < list.size() && list[b].begin < list[a].end; ++b) {
        if ((!list[a].writes && !list[b].writes) || list[a].instruction == list[b].instruction)
          continue;
        const auto [first, second] = std::minmax(list[a].instruction, list[b].instruction);
        if (!order.ordered(first, second))
          wrong("rank {}: instructions {} and {} race for elements from {}", rank, first, second,
                list[b].begin);
      }
  }
}

struct Place {
  std::size_t rank, instruction;
};
struct Match {
  std::optional<Place> send, receive;
};

class Player {
 public:
  Player(std::vector<PlayedRank>& ranks, Arithmetic arithmetic, PlayOrder order)
      : ranks_(ranks),
        arithmetic_(arithmetic),
        eager_(order.eager),
        random_(order.seed),
        shuffled_(order.seed != 0) {
    for (std::size_t r = 0; r < ranks.size(); ++r)
      memories_.emplace_back(ranks[r], static_cast<int>(r));
    for (std::size_t r = 0; r < ranks.size(); ++r)
      check_races(ranks[r].program, memories_[r], static_cast<int>(r));
    match();
  }

  Played run() {
    Played played;
    const std::size_t size = ranks_.size();
    played.sent.resize(size);
    played.sent_partial.resize(size);
    played.messages.resize(size);
    played.first_peer.assign(size, -1);
    for (std::size_t r = 0; r < size; ++r) {
      std::vector<int> waits;
      for (const algorithm::Instruction& i : ranks_[r].program.instructions) {
        waits.push_back(static_cast<int>(i.after.size()));
        if (i.verb != algorithm::Verb::send) continue;
        auto& sent =
            i.sources[0].space == algorithm::Space::partial ? played.sent_partial : played.sent;
        sent[r] += i.sources[0].count;
        ++played.messages[r];
        if (played.first_peer[r] < 0) played.first_peer[r] = i.peer;
      }
      state_.push_back({std::move(waits), {}, {}});
      const std::size_t instructions = ranks_[r].program.instructions.size();
      state_[r].followers.resize(instructions);
      state_[r].level.assign(instructions, 0);
      for (std::size_t i = 0; i < instructions; ++i)
        for (const int before : ranks_[r].program.instructions[i].after)
          state_[r].followers[static_cast<std::size_t>(before)].push_back(i);
      left_ += instructions;
    }
    for (std::size_t r = 0; r < size; ++r)
      for (std::size_t i = 0; i < state_[r].waits.size(); ++i)
        if (state_[r].waits[i] == 0) ready_.push_back({r, i});
    while (!ready_.empty()) step();
    if (left_ > 0) report_deadlock();
    for (std::size_t r = 0; r < size; ++r) {
      const auto begin = ranks_[r].memory.begin() + ranks_[r].output_at;
      played.outputs.emplace_back(begin, begin + ranks_[r].outputs);
      for (const int level : state_[r].level) played.steps = std::max(played.steps, level);
    }
    return played;
  }

 private:
  struct State {
    std::vector<int> waits;  // number of instructions it still waits for
    std::vector<std::vector<std::size_t>> followers;
    std::vector<int> level;
  };
  using Key = std::tuple<std::size_t, std::size_t, std::uint32_t>;  // from, to, ordinal

  const algorithm::Instruction& at(Place place) const {
    return ranks_[place.rank].program.instructions[place.instruction];
  }
  Key key_of(Place place) const {
    const algorithm::Instruction& i = at(place);
    const auto peer = static_cast<std::size_t>(i.peer);
    return i.verb == algorithm::Verb::send ? Key{place.rank, peer, i.ordinal}
                                           : Key{peer, place.rank, i.ordinal};
  }

  void match() {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      for (std::size_t i = 0; i < ranks_[r].program.instructions.size(); ++i) {
        const Place place{r, i};
        const algorithm::Instruction& instruction = at(place);
        if (instruction.verb != algorithm::Verb::send &&
            instruction.verb != algorithm::Verb::receive)
          continue;
        if (instruction.peer < 0 || static_cast<std::size_t>(instruction.peer) >= ranks_.size() ||
            static_cast<std::size_t>(instruction.peer) == r)
          wrong("rank {}: instruction {} speaks to rank {}", r, i, instruction.peer);
        Match& match = matches_[key_of(place)];
        auto& side = instruction.verb == algorithm::Verb::send ? match.send : match.receive;
        if (side) wrong("rank {}: instruction {} uses ordinal {} again", r, i, instruction.ordinal);
        side = place;
      }
    for (const auto& [key, match] : matches_) {
      const auto& [from, to, ordinal] = key;
      if (!match.send || !match.receive)
        wrong("message {} from rank {} to {} is never {}", ordinal, from, to,
              match.send ? "received" : "sent");
      const algorithm::Piece& source = at(*match.send).sources[0];
      const algorithm::Piece& target = at(*match.receive).target;
      if (source.count != target.count || (source.space == algorithm::Space::partial) !=
                                              (target.space == algorithm::Space::partial))
        wrong(
            "message {} from rank {} to {}: {} elements are sent, {} received, or of another type",
            ordinal, from, to, source.count, target.count);
    }
  }

  // Executes one ready instruction, or parks it until its peer's side is ready.
  void step() {
    std::size_t chosen = 0;
    if (shuffled_) chosen = random_() % ready_.size();
    const Place place = ready_[chosen];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
    const algorithm::Instruction& instruction = at(place);
    if (instruction.verb == algorithm::Verb::copy || instruction.verb == algorithm::Verb::reduce) {
      compute(place, instruction);
      return finish(place);
    }
    const Key key = key_of(place);
    Match& match = matches_[key];
    if (instruction.verb == algorithm::Verb::send && eager_) {
      on_wire_[key] = elements_of(place);
      levels_[key] = level(place) + 1;
      finish(place);
      if (waiting_.contains(key)) deliver(key, *match.receive);
      return;
    }
    if (eager_) {
      if (on_wire_.contains(key)) return deliver(key, place);
      waiting_[key] = true;
      return;
    }
    if (!waiting_.contains(key)) {
      waiting_[key] = true;
      return;
    }
    on_wire_[key] = elements_of(*match.send);
    levels_[key] = level(*match.send) + 1;
    finish(*match.send);
    deliver(key, *match.receive);
  }

  int& level(Place place) { return state_[place.rank].level[place.instruction]; }

  std::vector<Element> elements_of(Place send) {
    const algorithm::Piece& piece = at(send).sources[0];
    std::vector<Element> elements;
    for (std::int64_t i = 0; i < piece.count; ++i)
      elements.push_back(memories_[send.rank].read(piece, i));
    return elements;
  }

  void deliver(const Key& key, Place receive) {
    const algorithm::Piece& target = at(receive).target;
    const auto& elements = on_wire_[key];
    for (std::int64_t i = 0; i < target.count; ++i)
      memories_[receive.rank].write(target, i, elements[static_cast<std::size_t>(i)]);
    on_wire_.erase(key);
    waiting_.erase(key);
    level(receive) = std::max(level(receive), levels_[key]);
    finish(receive);
  }

  void compute(Place place, const algorithm::Instruction& instruction) {
    Memory& memory = memories_[place.rank];
    if (touches_nothing(instruction, memory)) return;
    const algorithm::Piece& target = instruction.target;
    for (std::int64_t i = 0; i < target.count; ++i) {
      const auto load = [&](const algorithm::Piece& source) {
        const Element element = memory.read(source, i);
        return source.space == algorithm::Space::partial ? element : widen(arithmetic_, element);
      };
      std::vector<Element> terms;
      for (const algorithm::Piece& source : instruction.sources) terms.push_back(load(source));
      Element sum =
          instruction.in_tree
              ? canonical_sum(arithmetic_, terms)
              : std::accumulate(terms.begin() + 1, terms.end(), terms[0],
                                [&](Element a, Element b) { return combine(arithmetic_, a, b); });
      if (instruction.finish && arithmetic_ == Arithmetic::integers) sum *= kFinish;
      memory.write(target, i,
                   target.space == algorithm::Space::partial ? sum : narrow(arithmetic_, sum));
    }
  }

  void finish(Place place) {
    --left_;
    State& state = state_[place.rank];
    for (const std::size_t follower : state.followers[place.instruction]) {
      state.level[follower] = std::max(state.level[follower], level(place));
      if (--state.waits[follower] == 0) ready_.push_back({place.rank, follower});
    }
  }

  [[noreturn]] void report_deadlock() const {
    for (const auto& [key, waits] : waiting_) {
      const auto& [from, to, ordinal] = key;
      if (waits) wrong("deadlock: message {} from rank {} to {}", ordinal, from, to);
    }
    wrong("deadlock");
  }

  std::vector<PlayedRank>& ranks_;
  Arithmetic arithmetic_;
  bool eager_;
  std::mt19937_64 random_;
  bool shuffled_;
  std::vector<Memory> memories_;
  std::map<Key, Match> matches_;
  std::map<Key, bool> waiting_;
  std::map<Key, std::vector<Element>> on_wire_;
  std::map<Key, int> levels_;
  std::vector<State> state_;
  std::vector<Place> ready_;
  std::size_t left_ = 0;
};

}  // namespace

Element combine(Arithmetic arithmetic, Element a, Element b) {
  if (arithmetic == Arithmetic::integers) return a + b;
  if (arithmetic != Arithmetic::expression) return as_element(as_float(a) + as_float(b));
  Element hash = (a ^ (a >> 31)) * 0x9e3779b97f4a7c15u + std::rotl(b, 23);
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  return hash ^ (hash >> 32);
}

Element widen(Arithmetic, Element element) { return element; }

Element narrow(Arithmetic arithmetic, Element element) {
  if (arithmetic != Arithmetic::bf16) return element;
  return (element + 0x7fff + ((element >> 16) & 1)) & 0xffff0000u;  // to nearest, ties to even
}

Element canonical_sum(Arithmetic arithmetic, std::span<const Element> terms) {
  if (terms.size() == 1) return terms[0];
  const auto left =
      static_cast<std::size_t>(algorithm::canonical_left(static_cast<int>(terms.size())));
  return combine(arithmetic, canonical_sum(arithmetic, terms.first(left)),
                 canonical_sum(arithmetic, terms.subspan(left)));
}

Played play(std::vector<PlayedRank> ranks, Arithmetic arithmetic, PlayOrder order) {
  return Player(ranks, arithmetic, order).run();
}

}  // namespace shoal::collectives
