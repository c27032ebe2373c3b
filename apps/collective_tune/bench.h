// Times alternative algorithms in turns on one kind of group: all ranks, the ranks of each host, or
// the rails (one rank per host).
#pragma once

#include <map>
#include <memory>

#include "decide.h"
#include "options.h"

#include "shoal/runtime/rendezvous/world.h"

namespace shoal::tune {

enum class Scope { world, hosts, rails };

struct Point {
  Operation operation = Operation::all_reduce;
  std::int64_t bytes = 0;  // size of the larger buffer
  MemoryKind memory = MemoryKind::symmetric;
};

// All calls are collective over the world and return the same on all ranks.
class Bench {
 public:
  // `rules` apply to every choice, after those of SHOAL_COLLECTIVES.
  Bench(const World& world, Store& store, const Options& options, Scope scope, std::string rules);

  int ranks() const { return ranks_; }  // ranks per group
  int nodes() const { return nodes_; }
  // Choices worth trying for an operation, without the one that the default uses.
  std::vector<Choice> choices(const Point& point) const;
  Choice usual(const Point& point) const;
  // Times the default first, then the choices. A choice's Communicator is created on first use.
  std::vector<Timed> time(const Point& point, const std::vector<Choice>& choices);
  // Compares the default with the default plus `more` rules.
  std::vector<Timed> time_rules(const Point& point, const std::string& more);

 private:
  struct Place {
    collectives::Communicator* communicator = nullptr;  // null: this rank is in no group
    Buffer symmetric;
    std::byte* send = nullptr;
    std::byte* recv = nullptr;
  };
  collectives::Communicator* with(const std::string& rules);
  std::string rule_of(const Choice& choice) const;
  std::vector<Timed> time_all(const Point& point, std::vector<Timed> timed,
                              const std::vector<std::string>& rules);
  double run(const Point& point, const Place& place, int times);
  void agree(std::vector<double>& values);

  const World& world_;
  Store& store_;
  const Options& options_;
  const Scope scope_;
  const std::string rules_;
  std::unique_ptr<collectives::Communicator> control_;
  std::unique_ptr<MemoryResource> host_;
  int ranks_ = 1, nodes_ = 1, color_ = 0;
  // Communicators by their rules. With scope `world`, `group` is not used.
  struct Made {
    std::unique_ptr<collectives::Communicator> world, group;
  };
  std::map<std::string, Made> made_;
};

// The scopes that apply to this world, in tuning order.
std::vector<Scope> scopes_of(const World& world);

}  // namespace shoal::tune
