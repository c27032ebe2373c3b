#include "shoal/parallel/mesh/placement.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::parallel {
namespace {

constexpr Axes axis_of(char letter) { return letter == 'D' ? kRdp : letter == 'P' ? kPp : kTp; }

int& coordinate(MeshPlace& place, char letter) {
  return letter == 'D' ? place.rdp : letter == 'P' ? place.pp : place.tp;
}

constexpr int kTableRanks = 64;

}  // namespace

int MeshShape::size(Axes axes) const {
  return ((axes & kTp) != 0 ? tp : 1) * ((axes & kPp) != 0 ? pp : 1) *
         ((axes & kRdp) != 0 ? rdp : 1);
}

Placement::Placement(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (upper == "CLUSTER") upper = "DPT";
  if (upper == "SPREAD") upper = "TPD";
  std::string sorted = upper;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != "DPT")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no placement_strategy \"{}\"", shortened(text)),
                "use cluster (DPT), spread (TPD) or another order of the letters D, P and T");
  letters_ = upper;
}

MeshPlace Placement::place_of(int rank, const MeshShape& shape) const {
  SHOAL_CHECK(rank >= 0 && rank < shape.size(), "rank {} of a mesh of {}", rank, shape.size());
  MeshPlace place;
  for (auto letter = letters_.rbegin(); letter != letters_.rend(); ++letter) {
    const int size = shape.size(axis_of(*letter));
    coordinate(place, *letter) = rank % size;
    rank /= size;
  }
  return place;
}

int Placement::rank_at(const MeshPlace& place, const MeshShape& shape) const {
  int rank = 0;
  MeshPlace copy = place;
  for (const char letter : letters_)
    rank = rank * shape.size(axis_of(letter)) + coordinate(copy, letter);
  return rank;
}

std::vector<int> Placement::group(int rank, Axes axes, const MeshShape& shape) const {
  std::vector<int> ranks;
  const MeshPlace mine = place_of(rank, shape);
  MeshPlace place = mine;
  const auto range = [&](Axes axis, int own) {
    return (axes & axis) != 0 ? std::pair{0, shape.size(axis)} : std::pair{own, own + 1};
  };
  const auto [d0, d1] = range(kRdp, mine.rdp);
  const auto [p0, p1] = range(kPp, mine.pp);
  const auto [t0, t1] = range(kTp, mine.tp);
  for (place.rdp = d0; place.rdp < d1; ++place.rdp)
    for (place.pp = p0; place.pp < p1; ++place.pp)
      for (place.tp = t0; place.tp < t1; ++place.tp) ranks.push_back(rank_at(place, shape));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int Placement::group_index(int rank, Axes axes, const MeshShape& shape) const {
  // Groups are numbered by their coordinates along the other axes, in the placement's order. This
  // equals the order of their smallest ranks.
  MeshPlace place = place_of(rank, shape);
  int index = 0;
  for (const char letter : letters_)
    if ((axes & axis_of(letter)) == 0)
      index = index * shape.size(axis_of(letter)) + coordinate(place, letter);
  return index;
}

MeshShape mesh_shape(int ranks, int pp, int tp) {
  SHOAL_CHECK(ranks > 0 && pp > 0 && tp > 0,
              "a mesh of {} ranks, pipeline_parallel_degree {}, tensor_parallel_degree {}", ranks,
              pp, tp);
  const std::int64_t replica = std::int64_t{pp} * tp;  // may exceed an int
  if (ranks % replica != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ranks do not divide into replicas of pipeline_parallel_degree {} x "
                            "tensor_parallel_degree {} = {} ranks",
                            ranks, pp, tp, replica),
                ranks < replica
                    ? fmt::format("start {} ranks, or lower the degrees", replica)
                    : fmt::format("start {} or {} ranks, or change the degrees",
                                  ranks / replica * replica, (ranks / replica + 1) * replica));
  return {static_cast<int>(ranks / replica), pp, tp};
}

std::string placement_table(const MeshShape& shape, const Placement& placement) {
  std::string text = fmt::format("mesh of {} ranks: rdp {} x pp {} x tp {}, placement {}\n",
                                 shape.size(), shape.rdp, shape.pp, shape.tp, placement.letters());
  text += fmt::format("{:>5} {:>4} {:>4} {:>4}  {}\n", "rank", "rdp", "pp", "tp",
                      "its model (mp) on ranks");
  for (int rank = 0; rank < shape.size(); ++rank) {
    if (shape.size() > kTableRanks && rank == kTableRanks / 2) {
      rank = shape.size() - kTableRanks / 2;
      text += "  ...\n";
    }
    const MeshPlace place = placement.place_of(rank, shape);
    text += fmt::format("{:>5} {:>4} {:>4} {:>4}  {}\n", rank, place.rdp, place.pp, place.tp,
                        fmt::join(placement.group(rank, kMp, shape), " "));
  }
  return text;
}

}  // namespace shoal::parallel
